"""What this repository publishes is whole, reads back on any machine, and names no machine."""

import gzip
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from kit import forecast
from kit.claims import verify
from kit.claims.found import Run
from kit.claims.judge import judge
from kit.scenario import Scenario

PUBLISHED = sorted(p.parent for p in (Path(__file__).parent.parent / "published").glob("*/run.json"))


@cache
def loaded(folder: Path) -> Run:
    """Read and analysed once for all tests."""
    return verify.load(folder)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda p: p.name)
def test_it_is_whole_and_its_claims_can_be_judged(folder: Path) -> None:
    assert verify.check(folder, None) is not None
    claims = judge(loaded(folder))
    assert [c for c in claims if c.counted]
    assert [c.claim.id for c in claims if c.outcome == "fails"] == []


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda p: p.name)
def test_its_report_says_first_what_is_forced(folder: Path) -> None:
    first = (folder / "report" / "report.md").read_text().splitlines()[0]
    for word in ("Rehearsal", "weights are random", "accept length was forced"):
        assert word in first


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda p: p.name)
def test_the_forecast_holds_the_pools_that_were_measured(folder: Path) -> None:
    run = loaded(folder)
    if any(c.pool_forced for c in run.summary.conditions):
        pytest.skip("the pools of this run were set by --max-total-tokens")
    wanted = msgspec.convert(run.records.run.scenario, Scenario)
    arms = forecast.of_scenario(wanted, Path("nowhere"), "H200", None).arms
    for condition in run.summary.conditions:
        pool = arms[condition.arm].pool_tokens
        assert pool is not None and condition.pool_tokens is not None
        assert pool.low <= condition.pool_tokens <= pool.high, condition.arm


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda p: p.name)
def test_it_names_no_folder_of_a_machine(folder: Path) -> None:
    for path in (p for p in folder.rglob("*") if p.is_file()):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert not re.search(rb"[\"' =](/root|/home|/tmp|/work)/", data), path


def test_there_is_something_published() -> None:
    assert {"h200-pool", "h200-pool-measured", "h200-moe-cap", "h200-break-even"} <= {p.name for p in PUBLISHED}


def test_all_of_it_stays_small_enough_for_a_clone() -> None:
    assert sum(p.stat().st_size for f in PUBLISHED for p in f.rglob("*") if p.is_file()) < 20 * 2**20
