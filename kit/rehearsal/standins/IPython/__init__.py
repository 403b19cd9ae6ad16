# ruff: noqa: N999 -- the name is the real package's
"""Empty stand-in: SGLang imports IPython for notebooks, which a server has none of."""
