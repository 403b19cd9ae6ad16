"""Reads a data set that is one JSON object a line. Knows nothing of what the objects mean."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from kit.errors import UnusableInput

T = TypeVar("T")


def read(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Line number and record of each line that is not blank; raises UnusableInput that names file and line."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(_data(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise UnusableInput(f"{path.name}:{number}: {error}; mend the line, or get the file again") from None


def _data(path: Path) -> bytes:
    """The file's bytes, unpacked when its name ends in .gz, without a byte order mark."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise UnusableInput(f"{path.name}: not a whole gzip file: {error}; get it again") from None
    return data.removeprefix(b"\xef\xbb\xbf")
