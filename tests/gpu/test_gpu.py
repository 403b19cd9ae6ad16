"""Facts, choice, samples and doctor rows through the true pynvml and a stand-in library."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin import Standin, wait_until

from kit import gpu, scenario
from kit.errors import UnusableInput
from kit.measurements import GpuFacts, GpuSample, read_lines

L4, L40S = GpuFacts(index=0, name="NVIDIA L4"), GpuFacts(index=1, name="NVIDIA L40S")


FACTS = ["facts"]
EXPECTED = json.dumps({"expected": "H200"})
MACHINES: dict[str, tuple[dict[str, object], list[str]]] = {
    "one card": (
        {"card0_ecc": 1, "card0_persistence": 0, "card0_pcie": 4, "card0_lanes": 16, "card0_processes": "41,17"},
        FACTS,
    ),
    "two cards": ({"count": 2, "card1_name": "NVIDIA L40S"}, FACTS),
    "GB10": ({"card0_name": "NVIDIA GB10", "card0_memory": 0}, FACTS),
    "a lost card": ({"count": 2, "card1_fail": 15}, FACTS),
    "not loaded": ({"init": 9}, FACTS),
    "another version": ({"init": 18}, FACTS),
    "no card": ({"count": 0}, FACTS),
    "in use, select": ({"card0_processes": "4711"}, ["select", EXPECTED]),
    "in use, checks": ({"card0_processes": "4711"}, ["checks", EXPECTED]),
    "one card, samples": ({"card0_reasons": 4, "card0_processes": "99"}, ["sample", "{folder}/trial/gpu.jsonl", "0.5"]),
    "two cards, samples": ({"count": 2, "card1_sm_clock": 600}, ["sample", "{folder}/gpu.jsonl", "0.2", "0,1"]),
    "GB10, samples": ({"card0_memory": 0}, ["sample", "{folder}/gpu.jsonl", "0.2"]),
}


class Said(NamedTuple):
    """What each of MACHINES answered, and where its folder is."""

    answers: dict[str, Any]
    home: Path


@pytest.fixture(scope="module")
def said(libraries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Said:
    """All in one process: most of its time is the start."""
    home = tmp_path_factory.mktemp("machines")
    orders = []
    for name, (keys, command) in MACHINES.items():
        machine = Standin(home / name, libraries["new"])
        machine.set(**keys)
        orders.append((machine, [word.replace("{folder}", str(home / name)) for word in command]))
    return Said(dict(zip(MACHINES, orders[0][0].ask_each(*orders), strict=True)), home)


# ---- facts ----------------------------------------------------------------------------------------------------------


def test_facts_of_one_card(said: Said) -> None:
    (card,), note = said.answers["one card"]
    assert note == ""
    assert card["name"] == "NVIDIA L4"
    assert card["uuid"] == "GPU-standin-0"
    assert (card["driver"], card["cuda"], card["compute_capability"]) == ("550.54.15", "12.4", "8.9")
    assert card["memory_total_bytes"] == 24152899584
    assert (card["sm_clocks_mhz"][0], card["sm_clocks_mhz"][-1]) == (210, 2040)
    assert card["power_limit_w"] == 72.0
    assert (card["ecc"], card["persistence"], card["mig"]) == (True, False, None)
    assert (card["pcie_generation"], card["pcie_width"]) == (4, 16)
    assert card["foreign_processes"] == [17, 41]


def test_facts_of_two_cards(said: Said) -> None:
    cards, _ = said.answers["two cards"]
    assert [(c["index"], c["name"], c["uuid"]) for c in cards] == [
        (0, "NVIDIA L4", "GPU-standin-0"),
        (1, "NVIDIA L40S", "GPU-standin-1"),
    ]


def test_facts_of_a_gb10_say_none_where_the_card_has_no_answer(said: Said) -> None:
    (card,), note = said.answers["GB10"]
    assert note == ""
    assert card["name"] == "NVIDIA GB10"
    assert card["memory_total_bytes"] is card["memory_used_bytes"] is card["power_limit_w"] is None
    assert card["sm_clocks_mhz"] == []


def test_a_lost_card_keeps_its_index_and_is_named(said: Said) -> None:
    cards, note = said.answers["a lost card"]
    assert [c["name"] for c in cards] == ["NVIDIA L4", None]
    assert note == "card 1: no answer from the driver"


@pytest.mark.parametrize(
    ("machine", "note"),
    [
        ("not loaded", "no GPU facts: the NVIDIA driver is not loaded"),
        (
            "another version",
            "no GPU facts: the NVIDIA library does not start: RM has detected an NVML/RM version mismatch.",
        ),
        ("no card", "no GPU facts: the NVIDIA library finds no card"),
    ],
)
def test_no_card_and_a_driver_that_does_not_start_are_a_note(said: Said, machine: str, note: str) -> None:
    assert said.answers[machine] == [[], note]


def test_no_library_is_a_note_and_no_error(tmp_path: Path) -> None:
    machine = Standin(tmp_path, tmp_path)
    commands = ["facts"], ["checks", "{}"], ["sample", str(tmp_path / "gpu.jsonl"), "0", ""]
    (cards, note), rows, sampled = machine.ask_each(*((machine, command) for command in commands))
    if cards:
        pytest.skip("this machine has a real NVIDIA library")
    assert note == "no GPU facts: the NVIDIA library is not on this machine"
    assert [(row["name"], row["state"], row["detail"]) for row in rows][0] == ("GPU", "warn", note)
    assert sampled["samples"] == []
    assert not (tmp_path / "gpu.jsonl").exists()


# ---- the choice -----------------------------------------------------------------------------------------------------


def table(**keys: Any) -> scenario.Gpu:
    return scenario.Gpu(**keys)


def test_the_first_card_of_the_expected_name_is_chosen() -> None:
    assert gpu.select(table(expected="L40S"), [L4, L40S]) == [1]
    assert gpu.select(table(expected="nvidia l4"), [L40S, L4]) == [0]
    assert gpu.select(table(count=2), [L4, L40S]) == [0, 1]
    assert gpu.select(table(ids=[1]), [L4, L40S]) == [1]


def test_no_card_and_none_expected_is_no_choice() -> None:
    assert gpu.select(table(), []) == []


@pytest.mark.parametrize(
    ("asked", "cards", "line"),
    [
        (
            {"expected": "L4"},
            [L40S],
            "gpu.expected: expected L4, found card 1 NVIDIA L40S; "
            'to run here all the same: `--set gpu.expected="NVIDIA L40S"`',
        ),
        (
            {"expected": "L4"},
            [],
            "gpu.expected: expected L4, found no NVIDIA card; to run here all the same: `--set gpu.expected=`",
        ),
        (
            {"expected": "L4", "count": 2},
            [L4, L40S],
            "gpu.count: expected 2 x L4, found card 0 NVIDIA L4, card 1 NVIDIA L40S; "
            "take fewer with `--set gpu.count=1`",
        ),
        (
            {"ids": [3]},
            [L4],
            "gpu.ids: no card 3 here; found card 0 NVIDIA L4; name others with `--set gpu.ids=[0]`",
        ),
        (
            {"ids": [1], "expected": "L4"},
            [L4, L40S],
            "gpu.expected: expected L4, found card 1 NVIDIA L40S; "
            'to run here all the same: `--set gpu.expected="NVIDIA L40S"`',
        ),
        ({}, [GpuFacts(index=0)], "gpu: card 0 does not answer the driver; look at `nvidia-smi` and `dmesg`"),
    ],
)
def test_another_card_is_one_line_with_the_way_out(asked: dict[str, Any], cards: list[GpuFacts], line: str) -> None:
    with pytest.raises(UnusableInput) as caught:
        gpu.select(table(**asked), cards)
    assert str(caught.value) == line


def test_foreign_processes_are_listed_with_the_card(said: Said) -> None:
    assert "card 0 NVIDIA L4 (in use by processes 4711)" in said.answers["in use, select"]["error"]
    rows = said.answers["in use, checks"]
    states = {row["name"]: row["state"] for row in rows}
    assert states == {"GPU 0": "ok", "GPU 0 in use": "warn", "GPU of the scenario": "fail"}


def test_the_nearest_clock_that_all_cards_support_is_taken() -> None:
    cards = [GpuFacts(index=0, sm_clocks_mhz=[885, 900, 915]), GpuFacts(index=1, sm_clocks_mhz=[870, 885, 930])]
    assert gpu.nearest_clock_mhz(907, cards[:1]) == 900
    assert gpu.nearest_clock_mhz(907, cards) == 885
    assert gpu.nearest_clock_mhz(907, [GpuFacts(index=0)]) == 907


# ---- samples --------------------------------------------------------------------------------------------------------


def test_samples_are_kept_and_written_as_they_arrive(said: Said) -> None:
    answer = said.answers["one card, samples"]
    written = list(read_lines(said.home / "one card, samples" / "trial" / "gpu.jsonl", GpuSample))
    assert len(written) == len(answer["samples"]) >= 2
    first = written[0]
    assert (first.sm_clock_mhz, first.memory_clock_mhz, first.reasons) == (1995, 6251, 4)
    assert (first.power_w, first.temperature_c, first.utilisation) == (72.0, 61, 0.97)
    assert (first.memory_used_bytes, first.processes, first.error) == (1048576, [99], None)
    assert first.energy_j is not None and written[-1].energy_j is not None
    assert written[-1].energy_j > first.energy_j
    assert sum(s.processes is not None for s in written) < len(written)


def test_samples_are_per_card(said: Said) -> None:
    samples = said.answers["two cards, samples"]["samples"]
    assert {(s["index"], s["sm_clock_mhz"]) for s in samples} == {(0, 1995), (1, 600)}


def test_an_old_driver_gives_reasons_by_the_old_name(old_standin: Standin, tmp_path: Path) -> None:
    old_standin.set(card0_reasons=0x44)
    answer = old_standin.ask("sample", str(tmp_path / "gpu.jsonl"), "0.2")
    assert {s["reasons"] for s in answer["samples"]} == {0x44}
    assert answer["errors"] == []


def test_a_gb10_without_memory_is_sampled(said: Said) -> None:
    samples = said.answers["GB10, samples"]["samples"]
    assert {s["memory_used_bytes"] for s in samples} == {None}
    assert {s["sm_clock_mhz"] for s in samples} == {1995}


@pytest.mark.parametrize(("code", "text"), [(15, "GPU is lost"), (999, "Unknown Error")])
def test_a_lost_card_is_an_error_sample_and_comes_back(standin: Standin, tmp_path: Path, code: int, text: str) -> None:
    path = tmp_path / "gpu.jsonl"
    process = standin.start("sample", str(path), "60")

    def written() -> list[dict[str, Any]]:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    wait_until(lambda: bool(written()), "a first sample")
    standin.set(card0_fail=code)
    wait_until(lambda: written()[-1]["error"] == text, "an error sample")
    standin.set(card0_fail=0)
    wait_until(lambda: written()[-1]["error"] is None, "a sample after the card came back")
    out, _ = process.communicate("\n", timeout=60)
    assert json.loads(out)["errors"] == [f"card 0: {text}"]


def test_the_sampler_keeps_off_the_cores_of_the_client(standin: Standin, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: nowhere else to go")
    process = standin.start("sample", str(tmp_path / "gpu.jsonl"), "60", "0", str(cores[0]))
    wait_until((tmp_path / "gpu.jsonl").exists, "the sampler's thread")
    pins = {task: os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{process.pid}/task").iterdir()}
    process.communicate("\n", timeout=60)
    assert sorted(map(sorted, pins.values())) == sorted([cores[1:], cores])
