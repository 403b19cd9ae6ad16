"""Handing a run on and opening what somebody else handed on."""

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kit import like, measurements, publish
from kit.claims.verify import verify
from kit.errors import UnusableInput
from tests.claims.folder import claimed, write
from tests.claims.test_verify import CLAIMS
from tests.synthetic import Truth, build

RUN = claimed(build(Truth(noise=0.004, restart=0.004, concurrency=(1, 4))), *CLAIMS)
NAMES = {"dragonfly": "host", "mwinters": "user"}
LEAKS = [
    ("--model-path /home/mwinters/models/qwen3-8b", ["mwinters", "/home"]),
    ("loaded /scratch/team-a/run_7/weights.safetensors in 3 s", ["scratch", "team-a"]),
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx done", ["hf_abc"]),
    ('"api_key": "sk-live-0123456789abcdef"', ["0123456789"]),
    ('"admin_api_key": "correct-horse-battery"', ["horse"]),
    ("Authorization: Bearer abc.def.ghi-jkl", ["abc.def"]),
    ("password=hunter2222", ["hunter"]),
    ("ssh mwinters@dragonfly.lab.example", ["mwinters", "dragonfly", "example"]),
    ("listening on dragonfly port 30000", ["dragonfly"]),
    ("init_method=tcp://10.1.22.3:29500", ["10.1.22"]),
    ("fetched https://bob:pass1234@mirror.org/x", ["bob", "pass1234"]),
    ("file:///data/mwinters/x.json", ["mwinters", "data"]),
    ("/root/.cache/thing", ["/root"]),
]
HARMLESS = [
    "max_total_num_tokens=24094, chunked_prefill_size=2048, context_len=40960, available_gpu_mem=3.20 GB",
    "Decode batch, #running-req: 3, #token: 1234567, token usage: 0.05, gen throughput (token/s): 216.20",
    "POST /generate HTTP/1.1 200, POST /v1/chat/completions, GET /server_info",
    'sampling {"stop_token_ids": [151643], "max_tokens": 128000}, api_key=None, "api_key": null',
    "--model-path <models>/qwen3-8b --host 127.0.0.1 --port 30000, 127.0.0.1:30000",
    "2026-11-30 09:00:00 TP0] 30/11/2026 text/event-stream tok/s and/or",
    '"image": "lmsysorg/sglang:v0.5.17@sha256:16aba8925507e631e1dc1e23d95d026533602591775f6a8db68b74ee99746155"',
]


def make_run(folder: Path) -> Path:
    """A sealed run whose log says too much of the machine."""
    run = write(RUN, folder / "run-1", finished=False)
    log = run / "sitting-1" / "b1-1-plain" / "server.log"
    log.write_text("\n".join(text for text, _ in LEAKS) + "\n")
    (log.parent / ".hidden").write_text("x")
    measurements.seal(run)
    return run


@pytest.mark.parametrize(("text", "leaks"), LEAKS)
def test_secrets_and_this_machine_are_taken_out(text: str, leaks: list[str]) -> None:
    cleaner = publish.Cleaner(NAMES)
    cleaned = cleaner.clean(text)
    assert not [leak for leak in leaks if leak in cleaned], cleaned
    assert cleaner.clean(cleaned) == cleaned
    assert sum(cleaner.removed.values()) >= 1


@pytest.mark.parametrize("text", HARMLESS)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert publish.Cleaner(NAMES).clean(text) == text


def test_common_names_are_no_person() -> None:
    text = "root logger of the user on localhost"
    assert publish.Cleaner({"root": "user", "localhost": "host", "user": "user"}).clean(text) == text


def test_a_published_folder_is_whole_clean_and_verifies(tmp_path: Path) -> None:
    done = publish.publish(
        make_run(tmp_path), tmp_path / "out" / "first", names=NAMES, report=lambda f: {"report.md": "# R\n"}
    )
    log = next(done.path.glob("sitting-1/b1-1-plain/server.log")).read_text()
    assert not [leak for _, leaks in LEAKS for leak in leaks if leak in log]
    assert (done.path / "report" / "report.md").read_text() == "# R\n"
    assert not list(done.path.rglob(".hidden"))
    assert done.removed["secrets"] >= 4 and done.files > 20
    report = verify(done.path, expect=done.manifest_sha256)
    assert report.exit_code == 0 and report.expected and report.manifest_sha256 == done.manifest_sha256


def test_the_manifest_is_one_that_sha256sum_reads(tmp_path: Path) -> None:
    done = publish.publish(make_run(tmp_path), tmp_path / "first", names=NAMES)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=done.path, check=True)


def test_large_records_are_packed_and_read_back_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = publish.publish(run, tmp_path / "first", names=NAMES)
    assert list(done.path.glob("sitting-1/*/*/requests.jsonl.gz"))
    assert measurements.read(done.path).trials == measurements.read(run).trials


def test_the_same_run_gives_the_same_bytes_as_folder_and_archive(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    done = [publish.publish(run, tmp_path / p / "x", archive=True, names=NAMES) for p in ("a", "b")]
    assert done[0].path.read_bytes() == done[1].path.read_bytes()
    assert done[0].path.name == "x.tar.gz"
    folder = publish.publish(run, tmp_path / "a" / "x", names=NAMES)
    assert folder.manifest_sha256 == done[0].manifest_sha256
    again = publish.publish(folder.path, tmp_path / "b" / "x", names=NAMES)
    assert again.manifest_sha256 == folder.manifest_sha256


def test_an_archive_opens_and_verifies(tmp_path: Path) -> None:
    done = publish.publish(make_run(tmp_path), tmp_path / "x", archive=True, names=NAMES)
    with publish.opened(done.path) as folder:
        assert verify(folder, expect=done.manifest_sha256).exit_code == 0
        kept = folder
        assert (folder.parent.name, folder.name) == ("published", "x")
    assert not kept.exists()
    with publish.opened(tmp_path / "run-1") as folder:
        assert folder == tmp_path / "run-1"


def test_forgery_shows_only_against_a_hash_from_elsewhere(tmp_path: Path) -> None:
    done = publish.publish(make_run(tmp_path), tmp_path / "first", names=NAMES)
    readme = done.path / "README.md"
    readme.write_text("forged")
    with pytest.raises(UnusableInput, match="README.md was changed after it was published"):
        verify(done.path)
    sums = (done.path / "SHA256SUMS").read_text().splitlines()
    forged = [
        f"{hashlib.sha256(b'forged').hexdigest()}  README.md" if line.endswith("README.md") else line for line in sums
    ]
    (done.path / "SHA256SUMS").write_text("\n".join(forged) + "\n")
    assert verify(done.path).exit_code == 0
    with pytest.raises(UnusableInput, match="first is not what you expect"):
        verify(done.path, expect=done.manifest_sha256)


def test_a_run_without_manifest_cannot_be_expected(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="it has no SHA256SUMS, so it was not published"):
        verify(make_run(tmp_path), expect="0" * 64)


@pytest.mark.parametrize("archive", [False, True])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, archive: bool) -> None:
    run = make_run(tmp_path)
    (tmp_path / "file").write_text("x")
    for place in (Path("/proc/x/y"), tmp_path / "file" / "y"):
        with pytest.raises(UnusableInput, match=f"^{place}: cannot be written: .*; name another place with --to$"):
            publish.publish(run, place, archive, names=NAMES)


def test_a_damaged_an_unfinished_and_a_taken_place_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UnusableInput, match="taken is there already; .*--to$"):
        publish.publish(run, tmp_path / "taken")
    (run / "complete").rename(tmp_path / "aside")
    with pytest.raises(UnusableInput, match="was not finished"):
        publish.publish(run, tmp_path / "out")
    next(run.glob("sitting-1/*/*/trial.json")).unlink()
    with pytest.raises(UnusableInput, match="is damaged and cannot be published: .*trial.json is missing"):
        publish.publish(run, tmp_path / "out")
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


# ---- somebody else's archive ----------------------------------------------------------------------------------------


def archive(path: Path, fill: Callable[[tarfile.TarFile], None]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("x/run.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"{}"))
        fill(tar)
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[tarfile.TarFile], None]:
    def fill(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        info.size = 4 if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(b"evil"))

    return fill


@pytest.mark.parametrize(
    "fill",
    [
        entry("../evil"),
        entry("x/../../evil"),
        entry("/evil"),
        entry("x/run.json"),
        entry("x\\..\\evil"),
        entry("x/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("x/link", tarfile.LNKTYPE, "x/run.json"),
        entry("x/pipe", tarfile.FIFOTYPE),
        entry("x/disk", tarfile.BLKTYPE),
    ],
)
def test_nothing_is_written_outside_an_archives_own_folder(
    tmp_path: Path, fill: Callable[[tarfile.TarFile], None]
) -> None:
    bad = archive(tmp_path / "bad.tar.gz", fill)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(UnusableInput, match=r"bad.tar.gz: .*nothing was unpacked"):
        publish.unpack(bad, into)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["bad.tar.gz", "into"]


def test_an_archive_without_a_folder_of_its_own_is_called_as_its_file(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with tarfile.open(tmp_path / "handed-on.tar.gz", "w:gz") as tar:
        tar.add(run, arcname=".")
    with publish.opened(tmp_path / "handed-on.tar.gz") as folder:
        assert (folder.parent.name, folder.name) == ("published", "handed-on")
        assert verify(folder).exit_code == 0


def test_a_cut_archive_and_one_without_a_run_are_named(tmp_path: Path) -> None:
    done = publish.publish(make_run(tmp_path), tmp_path / "x", archive=True, names=NAMES)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(done.path.read_bytes()[:5000])
    with pytest.raises(UnusableInput, match="cut.tar.gz: not a whole archive"), publish.opened(cut):
        pass
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(UnusableInput, match="holds no run.json"), publish.opened(tmp_path / "empty.tar.gz"):
        pass
    with pytest.raises(UnusableInput, match="no such run"), publish.opened(tmp_path / "gone"):
        pass


def test_a_folder_with_links_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "report").symlink_to(tmp_path)
    with pytest.raises(UnusableInput, match="report is a link"), publish.opened(run):
        pass


# ---- running like a published run -----------------------------------------------------------------------------------


def test_a_run_like_it_replays_the_published_bytes(tmp_path: Path) -> None:
    done = publish.publish(make_run(tmp_path), tmp_path / "first", names=NAMES)
    found = like.like(done.path)
    assert found.origin == "first" and found.scenario.name == "synthetic"
    record = found.freeze("own", 2, 1, tmp_path / "new" / "own-s2.jsonl")
    assert hashlib.sha256((tmp_path / "new" / "own-s2.jsonl").read_bytes()).hexdigest() == record.sha256
    with pytest.raises(UnusableInput, match="holds no workload of own with seed 9"):
        found.freeze("own", 9, 1, tmp_path / "x.jsonl")
    with pytest.raises(UnusableInput, match="has 16 requests, 17 are asked for"):
        found.freeze("own", 1, 17, tmp_path / "x.jsonl")


def test_another_workload_than_the_recorded_one_is_not_replayed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record = measurements.read_record(run / "run.json", measurements.RunRecord)
    workloads = [msgspec.structs.replace(w, sha256="0" * 64) for w in record.workloads]
    measurements.write_record(run / "run.json", msgspec.structs.replace(record, workloads=workloads))
    measurements.seal(run)
    with pytest.raises(UnusableInput, match="not the workload that was run"):
        like.like(run)
