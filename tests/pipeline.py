"""The whole recording half against the fake server of tests/fakes, through the true process engine and client.

As a program (`python -m tests.pipeline RESULTS STATE`) it is a runner that a test can kill.
"""

import socket
import sys
from pathlib import Path

import msgspec

from kit import run, run_folder, workload
from kit.client.job import WorkloadLine
from kit.engine.process import ProcessEngine
from kit.measurements import WorkloadRecord
from kit.scenario import Arm, Dataset, Model, Scenario, Server, Sweep
from kit.scrub import Scrubber

FAKES = Path(__file__).parent / "fakes"
OUTPUT_LEN = 8


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def scenario(port: int, **changes: object) -> Scenario:
    """Two arms, two loads, one seed, no warm-up: six trials in a few seconds."""
    whole = Scenario(
        title="Pipeline",
        question="does the order of events hold?",
        engine="process",
        name="pipeline",
        model=Model(path="fake-model"),
        draft=Model(path="fake-draft"),
        server=Server(port=port, env={"FAKE_STEP_MS": "2", "FAKE_PREFILL_MS": "1"}, start_timeout_s=60),
        arms={"plain": Arm(), "eagle3": Arm(draft=True, flags={"speculative-algorithm": "EAGLE3"})},
        datasets={"ids": Dataset(source="random-ids", input_len=16, output_len=OUTPUT_LEN)},
        sweep=Sweep(concurrency=[1, 4], seeds=[1], requests_per_user=2, min_requests=4, warmup_per_user=0),
    )
    return msgspec.structs.replace(whole, **changes)


def short(port: int, **changes: object) -> Scenario:
    """The same at one load: a trial for each of the three starts."""
    whole = scenario(port, **changes)
    return msgspec.structs.replace(whole, sweep=msgspec.structs.replace(whole.sweep, concurrency=[1]))


def freeze(dataset: str, seed: int, requests: int, path: Path) -> WorkloadRecord:
    """A workload without a tokenizer: distinct ids per seed and request."""
    lines = [
        WorkloadLine(index=i, output_len=OUTPUT_LEN, input_len=16, input_ids=[seed * 1000 + i + j for j in range(16)])
        for i in range(requests)
    ]
    frozen = workload.Frozen(
        dataset=dataset,
        seed=seed,
        lines=lines,
        dropped={},
        source_sha256=None,
        tokenizer_sha256="",
        shared_prefix_tokens=0,
    )
    return workload.write(frozen, path)


def setup(wanted: Scenario, results: Path, state: Path) -> run_folder.Setup:
    """What `kit.setup` would put together, with the fake SGLang on the server's path."""
    python = Path(sys.executable)
    engine = ProcessEngine(python, python, state, env={"PYTHONPATH": str(FAKES)})
    return run_folder.Setup(
        scenario=wanted,
        engine=engine,
        freeze=freeze,
        selftest=None,
        model_path=Path("fake-model"),
        draft_path=Path("fake-draft"),
        results=results,
        state=state,
        scrubber=Scrubber({"kit": Path(__file__).parent.parent, "results": results}),
        client_cores=engine.client_cores,
    )


class Quiet:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.trials: list[str] = []
        self.expected = 0
        self.starts = 0

    def say(self, text: str) -> None:
        self.news.append(text)

    def expect(self, trials: int, starts: int) -> None:
        self.expected, self.starts = trials, starts

    def started(self, seconds: float) -> None:
        self.starts -= 1

    def trial(self, name: str, seconds: float | None) -> None:
        if seconds is not None:
            self.trials.append(name)


if __name__ == "__main__":
    run.run(setup(short(int(sys.argv[3])), Path(sys.argv[1]), Path(sys.argv[2])), Quiet())
