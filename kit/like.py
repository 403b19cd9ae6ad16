"""A published run as something to run again: its scenario and its frozen workloads, byte for byte. Starts nothing."""

from pathlib import Path

import msgspec

from kit import measurements
from kit.claims import verify
from kit.errors import UnusableInput
from kit.measurements import WorkloadRecord
from kit.scenario import Scenario


class Like(msgspec.Struct, frozen=True, kw_only=True):
    """What to repeat. `frozen` holds each workload's record and bytes; `origin` names the run it comes from.

    `engine` is the one that the run really used, whatever its scenario says.
    """

    scenario: Scenario
    engine: str
    origin: str
    frozen: dict[tuple[str, int], tuple[WorkloadRecord, bytes]]

    def freeze(self, dataset: str, seed: int, requests: int, path: Path) -> WorkloadRecord:
        """Writes the published bytes instead of drawing anew: a `kit.run.Freeze`. Raises UnusableInput when the run
        asks for more than was published."""
        if (dataset, seed) not in self.frozen:
            raise UnusableInput(f"{self.origin}: holds no workload of {dataset} with seed {seed}")
        record, data = self.frozen[dataset, seed]
        if requests > record.requests:
            raise UnusableInput(
                f"{self.origin}: {dataset} with seed {seed} has {record.requests} requests, {requests} are asked for"
            )
        measurements.write_whole(path, data)
        return record


def like(folder: Path) -> Like:
    """Reads a run's folder, checks it whole, and gives what a second run needs. Raises UnusableInput."""
    verify.check(folder, None)
    run = measurements.read(folder).run
    try:
        scenario = msgspec.convert(run.scenario, Scenario)
    except msgspec.ValidationError as error:
        raise UnusableInput(f"{folder.name}/run.json: the recorded scenario cannot be read: {error}") from None
    frozen = {(w.dataset, w.seed): (w, _bytes(folder, w)) for w in run.workloads}
    return Like(scenario=scenario, engine=run.engine, origin=folder.name, frozen=frozen)


def _bytes(folder: Path, record: WorkloadRecord) -> bytes:
    """The workload's file; its hash must be the recorded one."""
    path = folder / "workloads" / f"{record.dataset}-s{record.seed}.jsonl"
    try:
        data = measurements.content(path)
    except FileNotFoundError:
        raise UnusableInput(f"{folder.name}/workloads/{path.name} is missing: nothing can be run like it") from None
    if measurements.sha256(data) != record.sha256:
        raise UnusableInput(f"{folder.name}/workloads/{path.name}: not the workload that was run (sha256 differs)")
    return data
