"""Empty stand-in: SGLang imports IPython for notebooks, which a server has none of."""
