"""Runs when the rehearsal server's Python starts and mends two modules as they are imported; imports nothing heavy.

`torchvision._meta_registrations` describes two operators whose C++ half is missing when torchvision's wheel was built
for another torch; they are declared first. `sglang.srt.arg_groups.overrides` swaps the intel_amx attention backend for
torch_native on a CPU without AMX; it is kept, since SGLang's CPU speculation exists only there and `sgl_kernel` (the
stand-in beside this file) serves it. All arms get it, so that they differ in speculation alone.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

TORCHVISION_OPERATORS = ("nms", "qnms")
KEPT_ALIVE: list[object] = []  # a torch library is taken back when it is collected


def declare_torchvision_operators() -> None:
    """Declare the operators that torchvision's Python half registers shapes for, unless its C++ half did."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in TORCHVISION_OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT_ALIVE.append(library)


def keep_intel_amx(overrides: Any) -> None:
    """Replace the fallback pass by one that leaves intel_amx alone; a changed SGLang fails here, loudly."""
    fall_back = overrides._attention_backend_platform_fallbacks

    def fall_back_unless_intel_amx(view: Any) -> Any:
        return {} if view.attention_backend == "intel_amx" else fall_back(view)

    passes = overrides.POST_PROCESS_PASSES
    passes[passes.index(fall_back)] = fall_back_unless_intel_amx
    overrides._attention_backend_platform_fallbacks = fall_back_unless_intel_amx  # attention_hook takes it by name


class _MendingLoader(importlib.abc.Loader):
    """Runs `before`, the module's own loader, then `after`."""

    def __init__(self, loader: Any, before: Callable[[], None] | None, after: Callable[[Any], None] | None) -> None:
        self.loader, self.before, self.after = loader, before, after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if self.before is not None:
            self.before()
        self.loader.exec_module(module)
        if self.after is not None:
            self.after(module)


class _Mending(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MENDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _MendingLoader(spec.loader, *MENDED[fullname])
        return spec


MENDED: dict[str, tuple[Callable[[], None] | None, Callable[[Any], None] | None]] = {
    "torchvision._meta_registrations": (declare_torchvision_operators, None),
    "sglang.srt.arg_groups.overrides": (None, keep_intel_amx),
}
sys.meta_path.insert(0, _Mending())
