"""Stands where SGLang's client imports a package at its start that random ids do not need; the CPU server has none."""


def load_dataset(*_, **__):
    """Never reached with --dataset-name random-ids."""
    raise NotImplementedError("the comparison uses random ids only")
