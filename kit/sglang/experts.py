"""SGLang's expert distribution recorder: switched on around a drive, its file read without torch.

The recorder slows the server (it also turns prefill graphs off), so a trial with it is never timed. Knows one kind of
file: what `torch.save` writes of mode `stat`, a `logical_count` of tokens by step, layer and expert.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.engine import Endpoint
from kit.errors import RunFailed

if TYPE_CHECKING:
    import numpy as np

FOLDER = "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"
"""The environment variable that says where the server writes."""
STORAGES = {"IntStorage": "<i4", "LongStorage": "<i8", "ShortStorage": "<i2", "FloatStorage": "<f4"}


@contextmanager
def recording(endpoint: Endpoint) -> Iterator[None]:
    """Records the experts of what is sent meanwhile; afterwards the server has written its file."""
    _ask(endpoint, "start")
    yield
    _ask(endpoint, "stop")
    _ask(endpoint, "dump")


def _ask(endpoint: Endpoint, what: str) -> None:
    reply = endpoint.call("POST", f"/{what}_expert_distribution_record", timeout_s=120)
    if reply.status != 200:
        raise RunFailed(
            f"the server would not {what} its expert recorder (status {reply.status});"
            " it needs expert-distribution-recorder-mode and a mixture-of-experts model"
        )


def take(folder: Path) -> list[list[int]]:
    """Tokens by layer and expert from the newest file of a folder, which is then removed. Raises RunFailed."""
    files = sorted(folder.glob("expert_distribution_recorder_*.pt"), key=lambda p: p.stat().st_mtime_ns)
    if not files:
        raise RunFailed(f"{folder.name}: the server wrote no expert distribution there")
    tokens = read(files[-1])
    for file in files:
        file.unlink()
    return tokens


def read(path: Path) -> list[list[int]]:
    """Tokens by layer and expert, over all recorded steps. Raises RunFailed for a file of another form."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Reader(archive).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, EOFError) as error:
        raise RunFailed(f"{path.name}: not an expert distribution that this kit reads: {error}") from None
    counts = found.get("logical_count") if isinstance(found, dict) else None
    if counts is None or getattr(counts, "ndim", 0) != 3:
        raise RunFailed(f"{path.name}: holds no tokens by step, layer and expert; run the recorder in mode stat")
    return [[int(n) for n in layer] for layer in counts.sum(axis=0)]


class _Reader(pickle.Unpickler):
    """Reads tensors as numpy arrays and plain values; any other name in the file is refused, so nothing is run."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._root = archive.namelist()[0].partition("/")[0]
        super().__init__(io.BytesIO(archive.read(f"{self._root}/data.pkl")))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is not expected there")

    def persistent_load(self, pid: Any) -> "np.ndarray[Any, Any]":
        import numpy as np

        _, kind, key, *_ = pid
        return np.frombuffer(self._archive.read(f"{self._root}/data/{key}"), dtype=kind)


def _rebuilt(
    storage: "np.ndarray[Any, Any]", offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> "np.ndarray[Any, Any]":
    """A tensor of a storage: shape and strides count elements."""
    import numpy as np

    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if any(n < 1 for n in shape) or any(s < 0 for s in strides) or not 0 <= offset <= last < len(storage):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    steps = tuple(s * storage.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
