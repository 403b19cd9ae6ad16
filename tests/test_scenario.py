"""A scenario that cannot be used is one line with file, key and way out."""

from pathlib import Path

import pytest

from kit import scenario
from kit.errors import UnusableInput

GOOD = """
title = "t"
question = "q"
engine = "process"
[model]
path = "m"
[arms.plain]
[arms.fast]
draft = false
[datasets.random]
source = "random"
[sweep]
concurrency = [1]
seeds = [1]
"""


def load(tmp_path: Path, text: str = GOOD, sets: dict[str, str] | None = None) -> scenario.Scenario:
    path = tmp_path / "scenarios" / "case.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return scenario.load(path, sets)


def test_a_good_file_loads_with_its_stem_as_name(tmp_path: Path) -> None:
    assert load(tmp_path).name == "case"
    assert list(load(tmp_path).arms) == ["plain", "fast"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("concurrency = [1]", "concurency = [1]"),
            ["sweep", "unknown key 'concurency'", "did you mean 'concurrency'?"],
        ),
        (("concurrency = [1]", 'concurrency = ["a"]'), ["sweep.concurrency", "int"]),
        (("concurrency = [1]", "concurrency = []"), ["sweep.concurrency", "is empty"]),
        (("concurrency = [1]", "concurrency = [0]"), ["sweep.concurrency", "1 or more"]),
        (("concurrency = [1]", "concurrency = [1, 1]"), ["sweep.concurrency", "twice"]),
        (("seeds = [1]", "seeds = [1]\nmin_requests = 0"), ["sweep.min_requests", "1 or more"]),
        (("seeds = [1]", "seeds = [1]\nseeds_per_block = 0"), ["sweep.seeds_per_block", "1 or more"]),
        (('title = "t"', 'title = "t'), ["not valid TOML"]),
        (('title = "t"', 'title = "t"\nbaseline = "base"'), ["baseline", "[arms.base]"]),
        (("draft = false", "draft = true"), ["arms.fast.draft", "no [draft] table"]),
        (("[arms.fast]", "[arms.Fast]"), ["Fast", "a-z"]),
        (('engine = "process"', 'engine = "podman"'), ["engine", "podman"]),
        (("[sweep]", '[gpu]\nlock = "required"\n[sweep]'), ["gpu.lock_mhz", "is missing"]),
        (("[sweep]", "[server]\nport = 0\n[sweep]"), ["server.port", "1 to 65535"]),
        (('[model]\npath = "m"', ""), ["model"]),
        (('path = "m"', 'path = ""'), ["model.path", "is empty"]),
        (("seeds = [1]", "seeds = [1]\nrates = [nan]"), ["sweep.rates", "above 0"]),
        (("concurrency = [1]", "concurrency = [99999999]"), ["sweep.concurrency", "no load"]),
    ],
)
def test_a_fault_is_one_line_that_names_file_and_key(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    assert change[0] in GOOD
    with pytest.raises(UnusableInput) as caught:
        load(tmp_path, GOOD.replace(*change))
    message = str(caught.value)
    assert message.startswith("scenarios/case.toml: ")
    assert "\n" not in message
    for word in words:
        assert word in message
    assert caught.value.exit_code == 2


def test_set_overrides_one_key_and_is_checked_too(tmp_path: Path) -> None:
    assert load(tmp_path, sets={"sweep.seeds": "[4, 5]"}).sweep.seeds == [4, 5]
    assert load(tmp_path, sets={"model": "other/model"}).model == scenario.Model(path="other/model")
    with pytest.raises(UnusableInput, match="unknown key 'sedes'"):
        load(tmp_path, sets={"sweep.sedes": "[4]"})
    with pytest.raises(UnusableInput, match="no table"):
        load(tmp_path, sets={"title.x": "1"})


def test_an_unknown_scenario_names_the_near_one(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(UnusableInput, match="did you mean 'case'"):
        scenario.find("cas", tmp_path / "scenarios")
    with pytest.raises(UnusableInput, match="there are: case"):
        scenario.find("zzz", tmp_path / "scenarios")
    with pytest.raises(UnusableInput, match=r"called by its name there without \.toml; did you mean 'case'"):
        scenario.find("scenarios/case.toml", tmp_path / "scenarios")


def test_the_fingerprint_follows_what_is_asked_for(tmp_path: Path) -> None:
    one = scenario.fingerprint(load(tmp_path))
    assert one == scenario.fingerprint(load(tmp_path))
    assert one != scenario.fingerprint(load(tmp_path, sets={"sweep.seeds": "[2]"}))


def test_a_new_model_wants_a_word_on_its_draft(tmp_path: Path) -> None:
    text = GOOD.replace("draft = false", "draft = true") + '\n[draft]\npath = "d"\n'
    with pytest.raises(UnusableInput, match="another model's draft"):
        load(tmp_path, text, sets={"model": "other"})
    assert load(tmp_path, text, sets={"model": "other", "draft": "mate"}).draft == scenario.Model(path="mate")
