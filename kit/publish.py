"""Makes a run's folder fit to hand on, and opens one that somebody else handed on. Knows nothing of what was measured.

A published folder is a run's folder with a README, a report, a manifest (SHA256SUMS) and large records packed: `verify`
and `report` read it as it is. Secrets, users, hosts and absolute paths are taken out of every text but the frozen
workloads, whose bytes are what was sent; afterwards the seals are made anew. The same run gives the same bytes.
"""

import getpass
import gzip
import hashlib
import io
import platform
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import msgspec

from kit import measurements
from kit.claims.verify import SUMS
from kit.errors import UnusableInput
from kit.measurements import COMPLETE, PACKED, RunRecord

ARCHIVE = ".tar.gz"
PACK_FROM_BYTES = 4_096
MOST_BYTES, MOST_FILES = 4 * 2**30, 200_000
"""Limits on what is unpacked of somebody else's archive."""
WORKLOADS = "workloads"
GENERIC = {"root", "user", "admin", "ubuntu", "debian", "nobody", "localhost", "runner"}
"""Names that say nothing of a person or a machine, and that stand in many an innocent line."""

SECRETS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)|(?<=[Bb]earer )[\w.~+/=-]{8,}"
)
NAMED_SECRETS = re.compile(
    r"(?i)((?:api_?key|token|passwd|password|secret|authorization|credential)s?\\?[\"']?\s*[=:]\s*\\?[\"']?)"
    r"(?!(?:none|null|true|false)\b)(?![\d.]+\b)(?!<)([^\s\"',;{}\[\]()\\]{6,})"
)
URL_USERS = re.compile(r"(?<=://)[^\s/@\"']+@")
MAILS = re.compile(r"\b[\w.+-]+@(?!sha256:)[\w-]+(?:\.[\w-]+)*\b")
ADDRESSES = re.compile(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}(?=:\d)")
FILE_URLS = re.compile(r"(?<=file://)/[^\s\"']+")
PATHS = re.compile(r"(?<![\w/.<>:+-])/(?!v1/)(?:[\w.@+~-]+/)+([\w.@+~-]*)")
HOMES = re.compile(r"/(?:home|Users)/[\w.-]+|/root\b")


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What was made: the folder or archive, its manifest's hash, files and bytes, and what was taken out (counts)."""

    path: Path
    manifest_sha256: str
    files: int
    size_bytes: int
    removed: dict[str, int]


class Cleaner:
    """Takes secrets and this machine out of text, and counts what it took. Scrubbed text stays as it is."""

    def __init__(self, names: dict[str, str]) -> None:
        self.removed: dict[str, int] = {}
        self._names = {
            re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])"): label
            for word, label in names.items()
            if len(word) > 2 and word.lower() not in GENERIC
        }

    def clean(self, text: str) -> str:
        """The text without secrets, mail and host addresses, absolute paths, and this machine's user and host."""
        text = self._sub(SECRETS, "<secret>", text, "secrets")
        text = self._sub(NAMED_SECRETS, r"\1<secret>", text, "secrets")
        text = self._sub(URL_USERS, "<user>@", text, "users")
        text = self._sub(MAILS, "<user>@<host>", text, "users")
        text = self._sub(ADDRESSES, "<address>", text, "addresses")
        text = self._sub(FILE_URLS, "<path>", text, "paths")
        text = self._sub(PATHS, r"<path>/\1", text, "paths")
        text = self._sub(HOMES, "<home>", text, "paths")
        for pattern, label in self._names.items():
            text = self._sub(pattern, f"<{label}>", text, f"{label}s")
        return text

    def _sub(self, pattern: re.Pattern[str], into: str, text: str, what: str) -> str:
        text, count = pattern.subn(into, text)
        if count:
            self.removed[what] = self.removed.get(what, 0) + count
        return text


def this_machine() -> dict[str, str]:
    """Names that must not be handed on: of this machine and of who works on it."""
    node = platform.node()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name at all
        user = ""
    return {node: "host", node.partition(".")[0]: "host", user: "user"}


# ---- making one -----------------------------------------------------------------------------------------------------


def publish(
    run: Path,
    into: Path,
    archive: bool = False,
    names: dict[str, str] | None = None,
    report: Callable[[Path], Mapping[str, str]] | None = None,
) -> Published:
    """Writes the run as a folder `into`, or as `into`.tar.gz.

    `report` makes the report's files, by name, from the cleaned folder; they go to `report/`.
    Raises UnusableInput for a run that is damaged or not finished, and for a place that is taken.
    """
    _may_publish(run, into, archive)
    cleaner = Cleaner(this_machine() if names is None else names)
    with _room_beside(into) as scratch:
        folder = Path(scratch) / into.name
        folder.mkdir()
        _copy(run, folder, cleaner.clean)
        _seal_again(folder)
        measurements.read(folder)
        (folder / "README.md").write_text(readme(folder), encoding="utf-8")
        for name, text in (report(folder) if report else {}).items():
            measurements.write_whole(folder / "report" / name, text.encode())
        manifest = _write_sums(folder)
        files, size = _extent(folder)
        if archive:
            path = into.with_name(into.name + ARCHIVE)
            path.write_bytes(packed_folder(folder))
        else:
            path = into
            folder.rename(into)
    return Published(path=path, manifest_sha256=manifest, files=files, size_bytes=size, removed=cleaner.removed)


@contextmanager
def _room_beside(into: Path) -> Iterator[str]:
    """A scratch folder beside the place, so that what is made moves there whole; what cannot be written is named."""
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{into.name}-") as scratch:
            yield scratch
    except OSError as error:
        raise UnusableInput(f"{into}: cannot be written: {error.strerror}; name another place with --to") from None


def _may_publish(run: Path, into: Path, archive: bool) -> None:
    if not (run / "run.json").exists():
        raise UnusableInput(f"{run.name}: no run.json; name a run's folder below results/")
    if damaged := measurements.damage(run):
        raise UnusableInput(f"{run.name} is damaged and cannot be published: {damaged[0]}")
    if not (run / COMPLETE).exists():
        raise UnusableInput(f"{run.name}: the run was not finished; the same `invoke run` goes on with it")
    place = into.with_name(into.name + ARCHIVE) if archive else into
    if place.exists():
        raise UnusableInput(f"{place.name} is there already; remove it, or name another place with --to")


def _copy(run: Path, folder: Path, clean: Callable[[str], str]) -> None:
    """Copies what belongs to the results, cleaned, and packs what is large."""
    for source in sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink()):
        name = source.relative_to(run)
        if not _belongs(name):
            continue
        target = folder / name.with_name(name.name.removesuffix(PACKED))
        data = measurements.content(source.with_name(target.name))
        if name.parts[0] != WORKLOADS:
            data = clean(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix in (".jsonl", ".log") and len(data) >= PACK_FROM_BYTES:
            target, data = measurements.packed(target), gzip.compress(data, mtime=0)
        target.write_bytes(data)


def _belongs(name: Path) -> bool:
    if any(part.startswith((".", "aside-")) for part in name.parts):
        return False
    below = name.parts[0] == WORKLOADS or name.parts[0].startswith("sitting-")
    return name.as_posix() == "run.json" or (below and len(name.parts) > 1)


def _seal_again(folder: Path) -> None:
    """Cleaning changed records, so their markers are made anew, the run's last."""
    for marker in sorted(folder.glob(f"sitting-*/*/*/{COMPLETE}")):
        measurements.seal(marker.parent)
    measurements.seal(folder)


def _write_sums(folder: Path) -> str:
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    sums = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in files)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    return hashlib.sha256(sums.encode()).hexdigest()


def _extent(folder: Path) -> tuple[int, int]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return len(files), sum(p.stat().st_size for p in files)


def packed_folder(folder: Path) -> bytes:
    """The folder as a .tar.gz: names sorted, no times, no owners, so that the same folder gives the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(info, file)
    return buffer.getvalue()


def readme(folder: Path) -> str:
    """What lies here and how to check and repeat it."""
    run = measurements.read_record(folder / "run.json", RunRecord)
    pins = [f"- kit {run.kit_version}, commit {run.kit_commit or 'not recorded'}, engine {run.engine}"]
    pins += [f"- image {key}: {value}" for key, value in sorted(run.image.items())]
    pins += [f"- workload {w.dataset}, seed {w.seed}: sha256 {w.sha256}" for w in run.workloads]
    return "\n".join(
        [
            f"# {run.scenario.get('title', 'A run')}",
            "",
            str(run.scenario.get("question", "")),
            "",
            "Records of a benchmark run, for reading elsewhere: no server, card or container is needed.",
            "",
            "    ./inv verify --run HERE       # is it whole, and do its claims hold?",
            "    ./inv report --run HERE       # the report again, from the records",
            "    ./inv run --like HERE         # the same requests on your own machine",
            "    sha256sum --check SHA256SUMS",
            "",
            "`verify --expect` takes the manifest's own hash (`sha256sum SHA256SUMS`): ask the publisher.",
            "",
            *pins,
            "",
            "Secrets, user and host names and absolute paths were taken out; the workloads are the prompts as sent.",
            "",
        ]
    )


# ---- opening somebody else's ----------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """A published run as a folder: one that is there, or an archive unpacked for as long as the context lasts.

    Nothing is written outside: an archive may hold plain files below one folder, and a folder may hold no links.
    An archive's run lies in published/, under the name that its folder has. Raises UnusableInput otherwise.
    """
    if path.is_dir():
        if links := [p for p in path.rglob("*") if p.is_symlink()]:
            raise UnusableInput(f"{path.name}: {links[0].relative_to(path)} is a link; a published folder has none")
        yield path
        return
    if not path.is_file():
        raise UnusableInput(f"{path}: no such run; name its folder or its {ARCHIVE}")
    with tempfile.TemporaryDirectory(prefix="published-") as scratch:
        unpacked, place = Path(scratch) / "unpacked", Path(scratch) / "published"
        unpack(path, unpacked)
        found = _only_run(unpacked, path.name)
        place.mkdir()
        yield found.rename(place / (found.name if found != unpacked else path.name.removesuffix(ARCHIVE)))


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks plain files below `folder` and refuses everything else before the first byte is written."""
    folder.mkdir(exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = _harmless(tar, archive.name)
            for member in members:
                source = tar.extractfile(member)
                assert source is not None
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UnusableInput(f"{archive.name}: not a whole archive: {error}; get it again") from None


def _harmless(tar: tarfile.TarFile, name: str) -> list[tarfile.TarInfo]:
    files: list[tarfile.TarInfo] = []
    seen: set[PurePosixPath] = set()
    size = 0
    for member in tar:
        place = PurePosixPath(member.name)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise UnusableInput(f"{name}: {member.name} is no plain file; nothing was unpacked")
        if place.is_absolute() or ".." in place.parts or "\\" in member.name or place in seen:
            raise UnusableInput(f"{name}: {member.name} would be written elsewhere or twice; nothing was unpacked")
        seen.add(place)
        size += member.size
        if size > MOST_BYTES or len(files) >= MOST_FILES:
            raise UnusableInput(
                f"{name}: holds more than {MOST_FILES} files or {MOST_BYTES} bytes; nothing was unpacked"
            )
        files.append(member)
    return files


def _only_run(folder: Path, name: str) -> Path:
    found = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
    place = next((p for p in found if (p / "run.json").exists()), None)
    if place is None:
        raise UnusableInput(f"{name}: holds no run.json; it is no published run")
    return place
