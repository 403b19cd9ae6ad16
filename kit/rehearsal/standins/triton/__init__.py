"""Stand-in for triton, which SGLang imports everywhere and never launches on a CPU: every name exists, none computes.

A decorated kernel stays the plain Python function it was; any other name is a class that can be subclassed, annotated
with, asked for attributes and used as a decorator.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

__version__ = "3.5.1"  # what SGLang 0.5.23 compares against


class _Name(type):
    """Class of the placeholder classes: attributes are placeholders again, a call decorates."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __call__(cls, *arguments: Any, **_options: Any) -> Any:
        if len(arguments) == 1 and isinstance(arguments[0], types.FunctionType):
            return arguments[0]
        return lambda decorated=None, *_rest, **_named: decorated


def _placeholder(name: str) -> Any:
    return _Name(name, (), {})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _placeholder(name)
        setattr(self, name, value)
        return value


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes any `triton.x.y` importable."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "triton.backends":
            module.backends = {}  # type: ignore[attr-defined]  # torch looks here for devices: there are none


def jit(kernel: Callable[..., Any] | None = None, **_options: Any) -> Any:
    """Return the kernel as it is, with or without options in between."""
    return kernel if kernel is not None else lambda decorated: decorated


def cdiv(numerator: int, denominator: int) -> int:
    """Divide and round up."""
    return -(-numerator // denominator)


def next_power_of_2(value: int) -> int:
    """Return the smallest power of two that is not below `value`."""
    return 1 << (value - 1).bit_length()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _placeholder(name)


# The finder has to stand before the first `import triton.language`, so it is placed when triton is imported.
sys.meta_path.insert(0, _Submodules())
