"""State-space kernels: SGLang imports these names on every CPU and calls them for hybrid models only."""

from typing import NoReturn


def _absent(*_arguments: object, **_named: object) -> NoReturn:
    raise NotImplementedError("kit/rehearsal stands in for dense models only: there are no mamba kernels")


causal_conv1d_fn_cpu = _absent
causal_conv1d_update_cpu = _absent
chunk_gated_delta_rule_cpu = _absent
