"""Which file a source reads, where it comes from and what it must hash to. Downloads nothing: `kit.fetch` does."""

import hashlib
from pathlib import Path

import msgspec

from kit.errors import UnusableInput

UNVERIFIED = "unverified"


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One downloadable file. `url` holds `{revision}`; an unverified revision is fetched from `branch`.

    `sha256` and `revision` are "unverified" while nobody has obtained them; `provenance` tells how they were obtained.
    """

    file: str
    url: str
    revision: str
    sha256: str
    licence: str
    citation: str
    provenance: str
    branch: str = "main"

    @property
    def address(self) -> str:
        """The URL at the pinned revision, or at the branch while there is none."""
        return self.url.format(revision=self.branch if self.revision == UNVERIFIED else self.revision)


def checked(pin: Pin, folder: Path) -> tuple[Path, str]:
    """The pinned file below `folder` and its sha256. Raises UnusableInput when it is missing or another file."""
    path = folder / pin.file
    if not path.is_file():
        raise UnusableInput(
            f"{folder.name}/{pin.file} is missing (sha256 {pin.sha256}): `invoke fetch` gets it;"
            f" on a host without network, put the file from {pin.address} there"
        )
    with path.open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if pin.sha256 not in (UNVERIFIED, seen):
        raise UnusableInput(
            f"{folder.name}/{pin.file}: sha256 is {seen}, pinned is {pin.sha256}: the file is cut, changed or another;"
            f" remove it and get it again from {pin.address}"
        )
    return path, seen
