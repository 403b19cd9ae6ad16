"""The reviewer's verdict on a folder: is it whole, do its claims hold, and does it agree with another run.

Exit code 0: at least one thing was judged and everything judged holds; 1: something fails or cannot be told, nothing
was judged, or the run is not finished; 2 (UnusableInput): the folder is damaged, or is not the one whose manifest hash
was expected. Checksums tell damage. They do not tell forgery, for a forger makes them anew: that shows only against a
manifest hash from elsewhere.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kit import measurements
from kit.analysis.summary import summarise
from kit.analysis.words import counted
from kit.claims.against import Compared, Difference, compare, differences
from kit.claims.found import Run
from kit.claims.judge import Judged, judge, unfinished
from kit.errors import UnusableInput
from kit.scenario import Scenario

SUMS = "SHA256SUMS"
"""A published folder's manifest, in the format of sha256sum; its own sha256 is what `--expect` takes."""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `invoke verify` says; `notes` are remarks on the state of the folder."""

    run: str
    scenario: str
    title: str
    manifest_sha256: str | None
    expected: bool
    notes: list[str]
    claims: list[Judged]
    against: str | None
    differences: list[Difference]
    compared: list[Compared]
    judged: int
    holding: int
    exit_code: int


def verify(folder: Path, against: Path | None = None, expect: str | None = None) -> VerifyReport:
    """Judges a run's folder. Raises UnusableInput for one that is damaged, cannot be read or was not expected."""
    manifest = check(folder, expect)
    here = load(folder)
    other = None
    if against is not None:
        check(against, None)
        other = load(against)
        _same_scenario(here, other)
    claims = judge(here)
    compared = compare(here, other) if other else []
    outcomes = [c.outcome for c in claims if c.counted] + [c.outcome for c in compared if c.outcome != "not comparable"]
    return VerifyReport(
        run=folder.name,
        scenario=here.scenario.name,
        title=here.scenario.title,
        manifest_sha256=manifest,
        expected=expect is not None,
        notes=notes(here) + (["both are the same records"] if other and same_records(here, other) else []),
        claims=claims,
        against=against.name if against else None,
        differences=differences(here, other) if other else [],
        compared=compared,
        judged=len(outcomes),
        holding=outcomes.count("holds"),
        exit_code=exit_code(outcomes) if here.records.finished else 1,
    )


def exit_code(outcomes: Sequence[str]) -> int:
    """0 when something was judged and all of it holds, else 1."""
    return 0 if outcomes and all(o == "holds" for o in outcomes) else 1


def load(folder: Path) -> Run:
    """A run's folder as records, summary and scenario; raises UnusableInput that names what cannot be read."""
    records = measurements.read(folder)
    try:
        scenario = msgspec.convert(records.run.scenario, Scenario)
    except msgspec.ValidationError as error:
        raise UnusableInput(f"{folder.name}/run.json: the recorded scenario cannot be read: {error}") from None
    return Run(records, summarise(records), scenario)


def check(folder: Path, expect: str | None) -> str | None:
    """The manifest's hash (None: the folder was never published). Raises UnusableInput when the folder is damaged."""
    if not (folder / "run.json").exists():
        raise UnusableInput(f"{folder.name}: no run.json; name a run's folder below results/ or a published one")
    if found := damage(folder):
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise UnusableInput(f"{folder.name} is damaged: {'; '.join(found[:3])}{more}; get it again from its source")
    manifest = hashlib.sha256((folder / SUMS).read_bytes()).hexdigest() if (folder / SUMS).exists() else None
    if expect is not None and manifest != expect.strip().lower():
        seen = f"its manifest hash is {manifest}" if manifest else f"it has no {SUMS}, so it was not published"
        raise UnusableInput(f"{folder.name} is not what you expect ({expect}): {seen}")
    return manifest


def damage(folder: Path) -> list[str]:
    """What is no longer as it was sealed, and as it was published where it was."""
    return measurements.damage(folder) + (_broken_sums(folder) if (folder / SUMS).exists() else [])


def _broken_sums(folder: Path) -> list[str]:
    """Files that differ from the manifest, or that it does not name."""
    try:
        listed = measurements.hashes(folder / SUMS)
    except UnusableInput:
        return [f"{SUMS} holds no hashes"]
    there = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file() and p.name != SUMS}
    found = [f"{name} is missing" for name in sorted(set(listed) - set(there))]
    found += [f"{name} is not in {SUMS}" for name in sorted(set(there) - set(listed)) if _is_record(name)]
    for name in sorted(set(listed) & set(there)):
        if hashlib.sha256(there[name].read_bytes()).hexdigest() != listed[name]:
            found.append(f"{name} was changed after it was published")
    return found


def _is_record(name: str) -> bool:
    """What the analysis would read; a report written beside it later is no damage."""
    return name == "run.json" or name.startswith(("sitting-", "workloads/"))


def notes(run: Run) -> list[str]:
    """Remarks on a folder that can be read but is not all that was planned."""
    found = []
    if not run.records.finished:
        found.append(f"{unfinished(run)}; the same run command goes on")
    if begun := run.records.incomplete:
        found.append(f"{counted(len(begun), 'trial')} begun and not completed, the first {begun[0]}")
    void = [t for t in run.records.trials if t.record.void]
    if void:
        found.append(f"{counted(len(void), 'trial')} void, the first because {void[0].record.void}")
    if run.records.run.unpinned:
        found.append("the image was not pinned by a digest")
    return found + [f"rehearsal: {reason}" for reason in run.summary.rehearsal]


def same_records(here: Run, other: Run) -> bool:
    """Whether both hold the same requests, sent at the same moments and answered alike: a run and its own copy."""
    return _fingerprint(here) == _fingerprint(other)


def _fingerprint(run: Run) -> dict[tuple[int, str, str], tuple[object, ...]]:
    return {
        (t.sitting, t.record.leg, t.record.trial): (
            t.record.workload_sha256,
            *((r.index, r.sent_s, r.done_s, r.output_sha256) for r in t.requests),
        )
        for t in run.records.trials
    }


def _same_scenario(here: Run, other: Run) -> None:
    if here.scenario.name != other.scenario.name:
        raise UnusableInput(
            f"the runs are of two scenarios ({here.scenario.name} and {other.scenario.name}); compare runs of one"
        )
