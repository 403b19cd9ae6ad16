"""A benchmark kit that says whether an SGLang server should speculate, for which traffic, and up to how many users."""

__version__ = "0.1.0"
