"""Faults that users reported in other tools (by their number in our list): each that applies is a test somewhere.

Such a test carries the number in its name, wherever it stands.
"""

import re
from pathlib import Path

import pytest

from kit.errors import UnusableInput
from kit.scenario import Arm
from kit.sglang import launch
from tests import pipeline

LISTED = [
    1, 2, 3, 5, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 32, 33, 34, 35, 37, 38, 39,
    40, 41, 42, 44, 45, 46, 47, 48, 50, 51, 52, 53, 54, 55, 56, 57, 60, 61, 62, 63, 65, 66, 67, 69, 70, 71, 73, 74, 75,
]  # fmt: skip
WHY_NOT = {
    26: "handing over from warm-up to measurement without a drain: the flush that every trial needs wants an idle "
    "server; the opening burst is the same in all arms, and its requests are part of what a user at that load sees",
    40: "two tools that disagree on one model: nothing to test, but every report states formula, bonus token, "
    "template and temperature of its accept length (test_case_09 reads the definitions)",
}


def test_every_listed_case_is_a_test_or_has_a_reason() -> None:
    names = re.findall(
        r"def test_cases?_([\d_and]+)_", "".join(p.read_text() for p in Path(__file__).parent.rglob("test_*.py"))
    )
    tested = {int(number) for name in names for number in re.findall(r"\d+", name)}
    assert sorted(tested | set(WHY_NOT)) == LISTED
    assert not tested & set(WHY_NOT)


def test_case_33_storage_that_survives_a_flush_is_refused() -> None:
    wanted = pipeline.scenario(30000, arms={"plain": Arm(flags={"hicache-storage-backend": "file"})})
    with pytest.raises(UnusableInput, match="outlives the flush"):
        launch.arguments(wanted, "plain", Path("m"), None, 30000)
