"""Tables of scenarios, plans and checks for the terminal. Knows nothing of how they are run."""

from pathlib import Path

from tabulate import tabulate

from kit import plan as plans
from kit import scenario as scenarios
from kit.analysis.words import counted
from kit.doctor import Check
from kit.errors import UnusableInput
from kit.measurements import SelfTest
from kit.scenario import Scenario


def scenarios_table(folder: Path) -> str:
    """One row for each scenario file: what it asks, on which card, with which arms, how many trials.

    A file that cannot be used is named below the table.
    """
    rows, broken = [], []
    for path in sorted(folder.glob("*.toml")):
        try:
            rows.append(_scenario_row(scenarios.load(path)))
        except UnusableInput as error:
            broken.append(f"not usable: {error}")
    headings = ["scenario", "card", "arms", "data sets", "trials", "question"]
    table = tabulate(rows, headings, maxcolwidths=[None, 16, 24, 24, None, 60])
    return "\n".join([table, *([""] if broken else []), *broken])


def _scenario_row(s: Scenario) -> list[object]:
    trials = sum(len(leg.trials) for block in plans.blocks(s) for leg in block.legs)
    return [s.name, s.gpu.expected or "any", " ".join(s.arms), " ".join(s.datasets), trials, s.question]


def plan_table(s: Scenario) -> str:
    """The total with the estimated time, then the ordered legs with their trials."""
    blocks = plans.blocks(s)
    rows = [
        [leg.id, leg.arm, t.name, t.requests, t.warmup_requests]
        for block in blocks
        for leg in block.legs
        for t in leg.trials
    ]
    seconds = sum(plans.estimate_s(s, b) for b in blocks)
    starts = sum(len(b.legs) for b in blocks)
    table = tabulate(rows, ["leg", "arm", "trial", "requests", "warm-up"])
    return (
        f"{s.title}\n{s.question}\n\n{counted(len(rows), 'trial')} on {counted(starts, 'server start')}; "
        f"about {seconds / 60:.0f} min, a guess until something was measured here\n\n{table}"
    )


def checks_table(rows: list[Check]) -> str:
    """One row for each check; what is not ok comes with its way out."""
    cells = [
        [row.state.upper() if row.state == "fail" else row.state, row.name, row.detail, row.way_out] for row in rows
    ]
    return tabulate(cells, ["", "check", "seen", "way out"], maxcolwidths=[None, None, 60, 60])


def selftest_text(found: SelfTest) -> str:
    """The self-test in words."""
    rate = f"trusted up to {found.trusted_chunks_per_s:,.0f} chunks/s here"
    trusted = rate if found.trusted_chunks_per_s else "not trusted now: the machine is busy, or too slow"
    return (
        f"P99 error of the first token {1e3 * found.ttft_error_p99_s:.2f} ms, of a gap "
        f"{1e3 * found.gap_error_p99_s:.2f} ms; {trusted}"
    )
