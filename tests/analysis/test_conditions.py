import msgspec
import pytest

from kit.analysis.conditions import Condition
from kit.measurements import Measurements, ServerFacts
from kit.scenario import Dataset
from tests.analysis.shared import summarise
from tests.synthetic import ArmTruth, Truth, build

ARTICLE = Truth(
    arms={
        "plain": ArmTruth(pool_tokens=24_094),
        "eagle3": ArmTruth(pool_tokens=9_951, max_running=48, cap_warning=True, draft=True, accept_length=2.73),
    }
)


def conditions(m: Measurements) -> dict[str, Condition]:
    return {c.arm: c for c in summarise(m).conditions}


def said(m: Measurements, arm: str, **facts: object) -> Measurements:
    """The measurements with facts of one arm's servers replaced."""
    servers = [
        (n, msgspec.structs.replace(s, facts=msgspec.structs.replace(s.facts, **facts)) if s.arm == arm else s)
        for n, s in m.servers
    ]
    return msgspec.structs.replace(m, servers=servers)


def test_case_56_the_pools_stand_side_by_side_with_what_the_draft_took() -> None:
    found = conditions(build(ARTICLE))
    assert found["plain"].draft_share is None
    assert found["eagle3"].draft_share == pytest.approx(1 - 9_951 / 24_094)
    assert [(f.dataset, f.mean_tokens, f.requests) for f in found["eagle3"].fits] == [("own", 640.0, 15)]
    assert (found["eagle3"].pool_tokens, found["eagle3"].draft_pool_tokens) == (9_951, 9_951)


def test_a_pool_that_was_set_is_marked_forced_and_has_no_draft_share() -> None:
    found = conditions(said(build(ARTICLE), "eagle3", max_total_tokens_asked=9_951))["eagle3"]
    assert found.pool_forced and found.draft_share is None


def test_the_cap_says_whether_it_was_asked_for() -> None:
    found = conditions(build(ARTICLE))["eagle3"]
    assert (found.max_running_requests, found.cap, found.cap_warning) == (48, "default", True)
    asked = conditions(said(build(ARTICLE), "eagle3", max_running_requests_asked=16))["eagle3"]
    assert asked.cap == "asked"


def test_starts_that_differ_are_named() -> None:
    m = build(ARTICLE)
    servers = [*m.servers]
    number, last = servers[-1]
    servers[-1] = (number, msgspec.structs.replace(last, facts=msgspec.structs.replace(last.facts, pool_tokens=20_000)))
    found = summarise(msgspec.structs.replace(m, servers=servers))
    assert found.conditions[0].differs == ["pool tokens: 20000 and 24094"]
    assert "starts-differ" in {d.tag for d in found.doubts}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"device": "cpu"}, "the server ran on the CPU"),
        ({"load_format": "dummy"}, "the weights are random"),
        ({"forced_accept_length": 2.73}, "the accept length was forced (eagle3)"),
    ],
)
def test_a_rehearsal_says_why(facts: dict[str, object], reason: str) -> None:
    assert summarise(said(build(ARTICLE), "eagle3", **facts)).rehearsal == [reason]


@pytest.mark.parametrize(("sources", "rehearsal"), [(("random",), True), (("random-ids", "random"), True),
                                                   (("random", "prompts"), False)])  # fmt: skip
def test_case_50_random_prompts_alone_are_a_rehearsal(sources: tuple[str, ...], rehearsal: bool) -> None:
    datasets = {f"d{i}": Dataset(source=s) for i, s in enumerate(sources)}
    found = summarise(build(Truth(datasets=datasets))).rehearsal
    assert found == (["all prompts are random"] if rehearsal else [])


def test_a_real_run_is_no_rehearsal() -> None:
    assert summarise(build(ARTICLE)).rehearsal == []


def test_what_the_server_does_not_say_is_missing_and_not_zero() -> None:
    m = build(ARTICLE)
    silent = [(n, msgspec.structs.replace(s, facts=ServerFacts())) for n, s in m.servers]
    found = conditions(msgspec.structs.replace(m, servers=silent))["eagle3"]
    assert (found.pool_tokens, found.draft_share, found.weights_gib, found.max_running_requests) == (None,) * 4
