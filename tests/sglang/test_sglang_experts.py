"""The expert recorder: asked around a drive, its file read without torch. Fixtures are true `torch.save` files."""

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.client.job import DriveJob
from kit.engine import Reply
from kit.errors import RunFailed
from kit.sglang import experts

FIXTURES = Path(__file__).parent.parent / "fixtures" / "experts"


class Recorder:
    """An endpoint that notes what it is asked."""

    def __init__(self, status: int = 200) -> None:
        self.asked: list[str] = []
        self.status = status

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> Reply:
        self.asked.append(f"{method} {path}")
        return Reply(self.status, b"")

    def drive(self, job: DriveJob) -> Iterator[bytes]:
        raise NotImplementedError

    def exit_code(self) -> int | None:
        return None


def test_tokens_are_summed_over_steps() -> None:
    assert experts.read(FIXTURES / "stat.pt") == [[6, 0, 3, 0], [1, 1, 1, 7]]


def test_a_strided_view_is_read_as_it_lies() -> None:
    assert experts.read(FIXTURES / "view.pt") == [[6, 1], [0, 1], [3, 1], [0, 7]]


def test_the_recorder_is_on_only_around_what_is_sent() -> None:
    endpoint = Recorder()
    with experts.recording(endpoint):
        endpoint.asked.append("drive")
    route = "_expert_distribution_record"
    assert endpoint.asked == [f"POST /start{route}", "drive", f"POST /stop{route}", f"POST /dump{route}"]


def test_a_server_without_recorder_is_named() -> None:
    with (
        pytest.raises(RunFailed, match="would not start its expert recorder .status 500."),
        experts.recording(Recorder(500)),
    ):
        pass


def test_the_newest_file_is_taken_and_the_folder_left_empty(tmp_path: Path) -> None:
    for name, source in (("1", "view.pt"), ("2", "stat.pt")):
        (tmp_path / f"expert_distribution_recorder_{name}.pt").write_bytes((FIXTURES / source).read_bytes())
    assert experts.take(tmp_path) == [[6, 0, 3, 0], [1, 1, 1, 7]]
    with pytest.raises(RunFailed, match="wrote no expert distribution"):
        experts.take(tmp_path)


def test_a_file_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("run",)

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps(Evil()))
    with pytest.raises(RunFailed, match="evil.pt: not an expert distribution .*builtins.print is not expected"):
        experts.read(tmp_path / "evil.pt")
    (tmp_path / "cut.pt").write_bytes((FIXTURES / "stat.pt").read_bytes()[:700])
    with pytest.raises(RunFailed, match="cut.pt: not an expert distribution"):
        experts.read(tmp_path / "cut.pt")
