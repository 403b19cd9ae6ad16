"""A Debian for containers, made on the spot: no image registry is needed. Kept in .cache as one tar file."""

import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "python3,python3-pip,ca-certificates"
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


def with_folders(folders: list[Path], files: dict[str, str], links: dict[str, Path], to: Path) -> Path:
    """The base with folders of this machine at the very places they have here, small files and links, as a tar file."""
    shutil.copy(base_tar(), to)
    append = ["tar", "--append", "--file", str(to), "--numeric-owner"]
    for folder in folders:
        subprocess.run([*append, "--exclude=__pycache__", "-C", "/", str(folder).lstrip("/")], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*files, *links):
            (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (Path(scratch) / name).write_text(text)
        for name, target in links.items():
            (Path(scratch) / name).symlink_to(target)
        subprocess.run([*append, "-C", scratch, *files, *links], check=True)
    return to
