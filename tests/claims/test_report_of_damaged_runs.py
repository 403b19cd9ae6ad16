"""The report of a run that is damaged or not finished: it is written, and says so before anything else."""

import shutil
from pathlib import Path

import msgspec
import pytest

from kit import figures, report
from kit.claims import verify
from kit.errors import UnusableInput
from kit.measurements import COMPLETE, ServerRecord, TrialData
from kit.publish import publish
from kit.verdict import OWN_PROMPTS
from tests.claims.folder import claimed, write
from tests.claims.test_verify import CLAIMS
from tests.synthetic import Truth, build, edited

TEMPLATES = Path(__file__).parents[2] / "templates"
RUN = claimed(build(Truth(noise=0.004, restart=0.004, concurrency=(1, 4))), *CLAIMS)


def written(folder: Path) -> str:
    return report.write(folder, TEMPLATES, folder.parent / "made" / folder.name).read_text()


def text_of(folder: Path) -> str:
    """The Markdown alone, for which no chart is drawn."""
    run = verify.load(folder)
    return report.markdown(run, TEMPLATES, figures.of_run(run.summary, run.records), verify.damage(folder))


def first_line(folder: Path) -> str:
    return text_of(folder).splitlines()[0]


def first_leg(t: TrialData) -> TrialData | None:
    return t if t.record.leg == "b1-1-plain" else None


def one_trial(t: TrialData) -> TrialData | None:
    return t if (t.record.leg, t.record.trial) == ("b1-1-plain", "own-c0001-s1") else None


def test_a_whole_run_has_no_banner(tmp_path: Path) -> None:
    text = text_of(write(RUN, tmp_path / "run"))
    assert text.startswith("# Synthetic\n")
    assert "- 18 trials with 3 seeds in 1 A B A block;" in text


def test_edited_records_are_named_before_anything_else(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    record = next(folder.glob("sitting-1/*eagle3*/*/requests.jsonl"))
    record.write_bytes(record.read_bytes().replace(b'"prompt_tokens":600', b'"prompt_tokens":599', 1))
    text = written(folder)
    line = text.splitlines()[0]
    assert line.startswith("> **Damaged:** ") and line.endswith("nothing below can be relied on.")
    assert f"{record.relative_to(folder)} was changed after it was written" in line
    made = (tmp_path / "made" / "run" / "report.html").read_text()
    assert "<strong>Damaged:</strong>" in made and made.index("<blockquote>") < made.index("<h1>")
    assert written(folder) == text
    assert (tmp_path / "made" / "run" / "report.html").read_text() == made


def test_a_deleted_trial_and_a_broken_marker_are_named(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    trials = sorted(p.parent for p in folder.glob(f"sitting-1/*/*/{COMPLETE}"))
    shutil.rmtree(trials[0])
    (trials[1] / COMPLETE).write_bytes(b"\xff\x00")
    line = first_line(folder)
    assert f"{trials[0].relative_to(folder)}/complete is missing" in line
    assert f"{trials[1].relative_to(folder)}/complete holds no hashes" in line


def test_many_damaged_files_are_counted(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    for path in folder.glob("sitting-1/*/*/trial.json"):
        path.write_bytes(path.read_bytes() + b"\n")
    assert "; and 13 more. These files" in first_line(folder)


def test_a_published_folder_that_is_not_as_published_is_named(tmp_path: Path) -> None:
    copy = publish(write(RUN, tmp_path / "run"), tmp_path / "copy", names={}).path
    assert "Damaged" not in text_of(copy)
    (copy / "README.md").write_text("forged")
    assert "README.md was changed after it was published" in first_line(copy)


def test_an_unfinished_run_says_how_much_is_measured(tmp_path: Path) -> None:
    text = written(write(edited(RUN, first_leg), tmp_path / "run", finished=False))
    assert text.startswith("> **Unfinished:** 6 of 18 trials measured; the same `run` command goes on.")
    assert "- 6 of 18 trials with 3 seeds in 1 A B A block;" in text
    assert "cannot tell" in text and "the run is not finished: 6 of 18 trials measured" in text
    assert "another condition" not in text
    assert text.count("./inv run --scenario synthetic  # with the options that it was begun with") == 1


def test_one_trial_and_one_seed_are_counted_as_one_says_them(tmp_path: Path) -> None:
    text = text_of(write(edited(RUN, one_trial), tmp_path / "run", finished=False))
    assert "1 of 18 trials measured" in text and "- 1 of 18 trials with 1 seed in 1 A B A block;" in text
    assert "- 1 trial with 1 seed in 1 A B A block;" in text_of(write(edited(RUN, one_trial), tmp_path / "small"))


def test_two_sittings_of_one_block_do_not_count_twice() -> None:
    twice = build(Truth(concurrency=(1, 4), sittings=2))
    assert (len(twice.trials), twice.measured, twice.planned) == (36, 18, 18)


def test_a_run_whose_server_never_started_is_readable(tmp_path: Path) -> None:
    empty = msgspec.structs.replace(RUN, trials=[], servers=[])
    text = written(write(empty, tmp_path / "run", finished=False))
    assert text.startswith("> **Unfinished:** 0 of 18 trials measured")
    assert "No answer yet: no speculative server came up, with 0 of 18 trials measured." in text
    assert "- No server came up, so nothing was measured: 0 of 18 trials." in text
    tables = [lines for lines in text.split("\n\n") if lines.startswith("|")]
    assert all(len(lines.splitlines()) > 2 for lines in tables), "a table without rows"
    for heading in ("## What was measured", "## Ratios, seed by seed", "## How the servers were started"):
        assert heading not in text


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    folder = write(msgspec.structs.replace(RUN, trials=[], servers=[]), tmp_path / "run", finished=False)
    with pytest.raises(UnusableInput, match="^/proc/x/y: the report cannot be written there: "):
        report.write(folder, TEMPLATES, Path("/proc/x/y"))


def test_a_command_is_typed_once(tmp_path: Path) -> None:
    rehearsed = build(Truth(noise=0.004, restart=0.004, concurrency=(1, 4), load_format="dummy"))
    text = text_of(write(rehearsed, tmp_path / "run"))
    assert text.count(OWN_PROMPTS) == 1 and text.index(OWN_PROMPTS) > text.index("### 5. ")


def test_weights_that_took_less_than_nothing_are_not_available(tmp_path: Path) -> None:
    def freed(record: ServerRecord) -> ServerRecord:
        loads = [msgspec.structs.replace(x, memory_gib=-0.02) for x in record.facts.loads]
        return msgspec.structs.replace(record, facts=msgspec.structs.replace(record.facts, loads=loads))

    text = text_of(
        write(msgspec.structs.replace(RUN, servers=[(n, freed(s)) for n, s in RUN.servers]), tmp_path / "run")
    )
    assert "-0.02" not in text
