"""The tables of the terminal: what they say first, and what they say of what is broken."""

import shutil
from pathlib import Path

import msgspec

from kit import overview, scenario
from kit.measurements import SelfTest

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def test_a_broken_scenario_is_named_below_the_others(tmp_path: Path) -> None:
    shutil.copy(SCENARIOS / "smoke.toml", tmp_path)
    (tmp_path / "bad.toml").write_text("title = \n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    lines = overview.scenarios_table(tmp_path).splitlines()
    assert any(line.startswith("smoke ") for line in lines)
    assert lines[-3] == "" and "bad.toml" in lines[-2] and "binary.toml" in lines[-1]
    assert all(line.startswith("not usable: ") for line in lines[-2:])


def test_a_plan_says_its_total_first() -> None:
    smoke = scenario.load(SCENARIOS / "smoke.toml")
    lines = overview.plan_table(smoke).splitlines()
    assert " on 4 server starts; about " in lines[3] and lines[5].startswith("leg ")


def test_one_trial_is_counted_as_one_says_it() -> None:
    smoke = scenario.load(SCENARIOS / "smoke.toml", {"sweep.concurrency": "[1]", "sweep.seeds": "[1]"})
    alone = msgspec.structs.replace(smoke, arms={smoke.baseline: smoke.arms[smoke.baseline]})
    assert "\n1 trial on 1 server start; " in overview.plan_table(alone)


def test_a_client_that_is_not_trusted_is_said_to_be_so() -> None:
    found = SelfTest(ttft_error_p99_s=0.001, gap_error_p99_s=0.002, trusted_chunks_per_s=0.0)
    assert overview.selftest_text(found).endswith("; not trusted now: the machine is busy, or too slow")
    trusted = SelfTest(ttft_error_p99_s=0.001, gap_error_p99_s=0.002, trusted_chunks_per_s=4000.0)
    assert overview.selftest_text(trusted).endswith("; trusted up to 4,000 chunks/s here")
