import pytest

from kit.errors import UnusableInput
from kit.forecast.memory import Range, fraction_static, memory_of, version_of

EAGLE3 = {"speculative-algorithm": "EAGLE3"}


def test_a_card_is_found_by_key_and_by_nvmls_name() -> None:
    assert memory_of("l4", None).free_gib == memory_of("NVIDIA L4", None).free_gib == Range(21.43, 22.05)


def test_the_scenarios_card_is_taken_when_none_is_named() -> None:
    assert memory_of(None, None, expected="NVIDIA L4").name == "L4"


def test_free_memory_is_taken_less_the_servers_own_context() -> None:
    assert memory_of(None, 40.0).free_gib == Range(39.0, 39.85)
    assert memory_of("L4", 20.0).free_gib == Range(19.4, 19.85)


@pytest.mark.parametrize(
    ("card", "free", "expected", "said"),
    [
        ("H201", None, "", r"--card H201: .*did you mean H200\?"),
        ("zebra", None, "", r"--card zebra: .*known: L4"),
        (None, None, "", "no card is named; give --card"),
        (None, None, "NVIDIA Z9", "expects 'NVIDIA Z9'"),
        (None, 0.5, "", "--free-gib 0.5"),
    ],
)
def test_what_names_no_memory_says_the_way_out(card: str | None, free: float | None, expected: str, said: str) -> None:
    with pytest.raises(UnusableInput, match=said):
        memory_of(card, free, expected)


@pytest.mark.parametrize(
    ("version", "flags", "low", "high"),
    [
        ((0, 5, 17), {}, 0.822, 0.837),
        ((0, 5, 17), EAGLE3, 0.822, 0.837),
        ((0, 5, 20), {}, 0.684, 0.701),
        ((0, 5, 17), {"disable-prefill-cuda-graph": True}, 0.837, 0.837),
        ((0, 5, 17), {"mem-fraction-static": 0.85}, 0.85, 0.85),
    ],
)
def test_the_automatic_share_on_an_l4(
    version: tuple[int, int, int], flags: dict[str, object], low: float, high: float
) -> None:
    assert fraction_static(flags, memory_of("L4", None), version) == Range(low, high)


@pytest.mark.parametrize(
    ("version", "flags", "reserve_gib"),
    [
        ((0, 5, 9), EAGLE3, 2),
        ((0, 5, 13), EAGLE3, 4),
        ((0, 5, 13), {"speculative-algorithm": "STANDALONE"}, 6),
        ((0, 5, 13), {"speculative-algorithm": "NGRAM"}, 0),
        ((0, 5, 14), EAGLE3, 0),
    ],
)
def test_the_flat_reserve_of_earlier_versions(
    version: tuple[int, int, int], flags: dict[str, object], reserve_gib: int
) -> None:
    card = memory_of("L4", None)
    lost = fraction_static({}, card, version).high - fraction_static(flags, card, version).high
    assert lost * 23034 / 1024 == pytest.approx(reserve_gib, abs=0.02)


def test_a_large_card_keeps_ten_gib_back() -> None:
    assert fraction_static({}, memory_of("H200", None), (0, 5, 17)).high == round(1 - 10240 / 143771, 3) - 0.022


def test_versions_are_read_with_their_suffixes() -> None:
    assert version_of("0.5.13.post1") == (0, 5, 13)
    assert version_of("v0.5.23") == (0, 5, 23)
    assert version_of(None) is None
    assert version_of("nightly") is None
