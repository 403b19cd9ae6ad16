import msgspec
import pytest

from kit.analysis.limits import Limit, Pressure, limits
from kit.plan import Point
from tests.analysis.shared import summarise
from tests.synthetic import ArmTruth, Truth, build


def pressure(**fields: object) -> Pressure:
    known: dict[str, object] = {
        "dataset": "own", "point": Point("own", 32), "arm": "eagle3", "mean_running": 32.0, "max_running": 32,
        "mean_queue": 0.0, "max_queue": 0, "token_usage": 0.4, "retracted": 0, "eager_share": 0.0,
        "requests_fit": 60, "cap": 4096, "graph_max_batch": 64,
    }  # fmt: skip
    return Pressure(**{**known, **fields})  # type: ignore[arg-type]


def kinds(p: Pressure) -> list[str]:
    found: list[Limit] = limits(p)
    assert all(x.text for x in found)
    return [x.kind for x in found]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["compute"]),
        ({"requests_fit": 15, "max_running": 15, "max_queue": 17, "token_usage": 0.97}, ["pool"]),
        ({"requests_fit": 40, "max_running": 30, "token_usage": 0.99, "retracted": 3}, ["pool"]),
        ({"point": Point("own", 64), "cap": 48, "max_running": 48, "max_queue": 16}, ["cap"]),
        ({"eager_share": 1.0, "graph_max_batch": 16}, ["graph ceiling"]),
        ({"eager_share": 1.0, "graph_max_batch": 64}, ["compute"]),
        ({"max_running": 20, "token_usage": 0.3}, ["unknown"]),
        ({"max_running": None}, ["unknown"]),
        (
            {"point": Point("own", 64), "cap": 48, "max_running": 48, "retracted": 2, "eager_share": 0.9,
             "graph_max_batch": 24},
            ["cap", "pool", "graph ceiling"],
        ),
    ],
)  # fmt: skip
def test_what_limits_is_told_apart_by_evidence(fields: dict[str, object], expected: list[str]) -> None:
    assert kinds(pressure(**fields)) == expected


def test_case_57_the_cap_of_48_is_named_with_its_numbers() -> None:
    found = limits(pressure(point=Point("own", 64), cap=48, max_running=48, max_queue=16))
    assert "48" in found[0].text and "16 waited" in found[0].text


def test_case_60_the_pool_of_the_article_shows_at_32_users() -> None:
    """15 requests fit beside the draft, so 17 of 32 wait, and the crossover says so."""
    slow = {1: 1.5, 8: 1.5, 32: 0.8}
    truth = Truth(
        arms={
            "plain": ArmTruth(),
            "eagle3": ArmTruth(speed=slow.__getitem__, accept_length=2.7, pool_tokens=9_951, draft=True),
        },
        noise=0.003,
    )
    summary = summarise(build(truth))
    found = next(c for c in summary.crossovers if c.metric == "output_throughput_tok_s")
    assert (found.found.kind, found.found.wins_up_to, found.found.no_win_from) == ("bracket", 8, 32)
    assert [x.kind for x in found.limits] == ["pool"]
    assert "15 requests fit" in found.limits[0].text


def test_pressures_add_up_over_trials() -> None:
    m = build(Truth())
    found = next(p for p in summarise(m).pressures if p.arm == "plain" and p.point.concurrency == 32)
    assert (found.max_running, found.mean_running, found.retracted) == (32, 32.0, 0)
    silent = msgspec.structs.replace(found, max_running=None)
    assert limits(silent)[0].kind == "unknown"
