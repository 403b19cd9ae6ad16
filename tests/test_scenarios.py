"""Every scenario in the folder loads, draws from sources that exist, and claims what can be judged."""

import re
from pathlib import Path

import pytest

from kit import plan, scenario, workload
from kit.claims import found

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.toml"))
PUBLISHED = {
    "l4-eagle3", "l4-datasets", "gb10-moe-eagle3", "l4-draft-length", "l4-real-lengths", "expert-idle", "own-prompts",
    "h200-pool", "h200-moe-cap", "h200-break-even", "smoke",
}  # fmt: skip


def test_none_is_missing() -> None:
    assert {p.stem for p in FILES} >= PUBLISHED


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_loads_and_can_be_planned(path: Path) -> None:
    loaded = scenario.load(path)
    assert any(leg.trials for block in plan.blocks(loaded) for leg in block.legs)
    assert loaded.question.endswith("?")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_its_sources_exist_and_heed_its_keys(path: Path) -> None:
    for name, dataset in scenario.load(path).datasets.items():
        workload.check(name, dataset)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_its_claims_can_be_judged_and_say_so_in_words(path: Path) -> None:
    loaded = scenario.load(path)
    for claim in loaded.claims:
        found.check(claim, loaded)
        assert claim.text and (claim.reason or not claim.tolerance)
        assert not set(claim.concurrency) - set(loaded.sweep.concurrency), claim.id


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_nobody_obtained_is_unverified_and_no_hash_is_made_up(path: Path) -> None:
    loaded = scenario.load(path)
    for model in (loaded.model, loaded.draft):
        if model is not None and "/" in model.path:
            assert model.revision == "unverified" or re.fullmatch(r"[0-9a-f]{40}", model.revision)
    if loaded.image is not None:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", loaded.image.ref)
        assert loaded.image.sglang in loaded.image.ref


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_arm_with_an_eagle_has_a_draft(path: Path) -> None:
    for name, arm in scenario.load(path).arms.items():
        eagle = str(arm.flags.get("speculative-algorithm", "")).startswith("EAGLE")
        assert arm.draft == eagle, name


def test_the_article_sweep_leaves_the_cap_to_the_server() -> None:
    loaded = scenario.load(FOLDER / "l4-eagle3.toml")
    assert "max-running-requests" not in {**loaded.server.flags, **loaded.arms["eagle3"].flags}


def test_what_the_command_line_changes_is_recorded() -> None:
    changed = scenario.load(FOLDER / "l4-eagle3.toml", {"model": "org/other", "draft": "mate", "sweep.seeds": "[1]"})
    assert changed.changed == ["draft", "model", "sweep.seeds"]
    assert scenario.load(FOLDER / "l4-eagle3.toml").changed == []
