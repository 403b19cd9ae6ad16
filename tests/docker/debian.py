"""A Debian for containers, made on the spot: no image registry is needed. Kept in .cache as one tar file."""

import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "python3,python3-pip,ca-certificates,g++"
TAR = ROOT / ".cache" / "docker-base-bookworm.tar"


def base_tar() -> Path:
    """The file system of a small Debian with Python, as a tar file; needs root and debootstrap the first time."""
    if not TAR.exists():
        TAR.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kit-base-") as folder:
            _make(Path(folder) / "root")
    return TAR


def _make(root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root / "var/lib/apt/lists")
    shutil.rmtree(root / "var/cache/apt")
    part = TAR.with_suffix(".part")
    subprocess.run(["tar", "-C", str(root), "--numeric-owner", "-cf", str(part), "."], check=True)
    part.rename(TAR)
