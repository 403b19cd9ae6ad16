"""Freezing: what is written, what is counted, and each fault as one clear line."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kit import workload
from kit.errors import UnusableInput
from kit.scenario import Dataset
from kit.workload import chat, jsonl, pins, sharegpt_file, tokens
from kit.workload.source import file_sha256

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")
IDS = Dataset(source="random-ids", input_len=12, output_len=8)
OWN = Dataset(source="prompts", path="own.jsonl", output_len=16)


def context(base: Path, limit: int | None = None, datasets: Path = HERE) -> workload.Context:
    return workload.Context(datasets=datasets, tokenizer=HERE / "model", base=base, context_tokens=limit)


def own(folder: Path, *lines: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


# ---- frozen files ---------------------------------------------------------------------------------------------------


def test_the_hash_is_over_the_file_and_reading_gives_the_lines_back(tmp_path: Path) -> None:
    frozen = workload.freeze("ids", IDS, 1, 5, context(tmp_path))
    record = workload.write(frozen, tmp_path / "w" / "ids-s1.jsonl")
    data = (tmp_path / "w" / "ids-s1.jsonl").read_bytes()
    assert record.sha256 == hashlib.sha256(data).hexdigest() == workload.read_sha(tmp_path / "w" / "ids-s1.jsonl")
    assert workload.read(tmp_path / "w" / "ids-s1.jsonl") == frozen.lines
    assert (record.requests, record.dataset, record.seed) == (5, "ids", 1)


def test_case_51_the_same_seed_freezes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    shas = [
        workload.write(workload.freeze("r", IDS, seed, 9, context(tmp_path)), tmp_path / f"{n}.jsonl").sha256
        for n, seed in enumerate((3, 3, 4))
    ]
    assert shas[0] == shas[1] != shas[2]


def test_fewer_requests_are_the_start_of_more_for_fixed_lengths(tmp_path: Path) -> None:
    dataset = Dataset(source="random", input_len=32, output_len=8, path="sharegpt.json")
    few, many = (workload.freeze("r", dataset, 1, n, context(HERE)).lines for n in (4, 15))
    assert many[:4] == few


def test_a_missing_frozen_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="gone.jsonl: missing"):
        workload.read_sha(tmp_path / "gone.jsonl")


def test_shared_prefixes_are_counted_against_any_earlier_prompt_without_the_last_token() -> None:
    prompts = [[1, 2, 3, 4], [9, 9], [1, 2, 7], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert workload.shared_prefix_tokens(prompts) == 0 + 0 + 2 + 3 + 4


# ---- sources and their keys -----------------------------------------------------------------------------------------


def test_every_source_has_pins_keys_and_a_draw() -> None:
    assert {"random", "random-ids", "sharegpt", "prompts", "gsm8k", "humaneval"} <= set(workload.source_names())
    for name in workload.source_names():
        source = workload.source(name)
        assert set(Dataset.__struct_fields__) >= source.TAKES
        for pin in source.PINS:
            assert pin.licence and pin.citation and pin.provenance and "{revision}" in pin.url
            assert pin.sha256 == pins.UNVERIFIED or len(bytes.fromhex(pin.sha256)) == 32


def test_an_unknown_source_names_the_near_one() -> None:
    with pytest.raises(UnusableInput, match="did you mean 'sharegpt'"):
        workload.source("share-gpt")


def test_a_key_that_a_source_does_not_heed_is_an_error() -> None:
    with pytest.raises(UnusableInput, match=r"datasets.g.input_len: source gsm8k has no use for it"):
        workload.check("g", Dataset(source="gsm8k", input_len=512))


def test_random_needs_lengths() -> None:
    with pytest.raises(UnusableInput, match="needs input_len"):
        workload.freeze("x", Dataset(source="random-ids", output_len=8), 1, 2, context(HERE))


def test_random_ids_wrap_at_the_vocabulary_and_go_as_ids() -> None:
    size = tokens.vocabulary_size(HERE / "model")
    lines = workload.freeze(
        "x", Dataset(source="random-ids", input_len=size + 5, output_len=8), 1, 3, context(HERE)
    ).lines
    for line in lines:
        assert line.text is None and line.input_ids is not None
        assert all((b - a) % size == 1 for a, b in zip(line.input_ids, line.input_ids[1:], strict=False))


# ---- the reader's own prompts ---------------------------------------------------------------------------------------


def test_prompts_keep_their_own_output_len_before_the_scenarios(tmp_path: Path) -> None:
    own(tmp_path, {"prompt": "how many apples", "output_len": 7}, {"prompt": "the rivers of the north", "id": 3})
    lines = workload.freeze("own", OWN, 1, 2, context(tmp_path)).lines
    assert {line.text: line.output_len for line in lines} == {"how many apples": 7, "the rivers of the north": 16}


def test_messages_are_rendered_with_the_models_template(tmp_path: Path) -> None:
    own(tmp_path, {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]})
    dataset = Dataset(source="prompts", path="own.jsonl", output_len=16, chat_template=True)
    (line,) = workload.freeze("own", dataset, 1, 1, context(tmp_path)).lines
    assert line.text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"
    )


def test_empty_and_long_prompts_are_counted_and_never_replaced_by_a_repeat(tmp_path: Path) -> None:
    own(
        tmp_path,
        {"prompt": ""},
        {"prompt": " \n"},
        {"prompt": "rivers " * 90},
        *({"prompt": f"tell me {i}"} for i in range(3)),
    )
    with pytest.raises(UnusableInput) as raised:
        workload.freeze("own", OWN, 1, 4, context(tmp_path, limit=100))
    assert "own.jsonl: 3 usable prompts, 4 are asked for" in str(raised.value)
    assert "2 empty prompt, 1 longer than the context" in str(raised.value)
    frozen = workload.freeze("own", OWN, 1, 3, context(tmp_path, limit=100))
    assert len({line.text for line in frozen.lines}) == 3


def test_an_empty_prompt_stays_empty_under_a_template(tmp_path: Path) -> None:
    own(tmp_path, {"prompt": " "}, {"messages": [{"role": "user", "content": ""}]}, {"prompt": "how many"})
    dataset = Dataset(source="prompts", path="own.jsonl", output_len=16, chat_template=True)
    with pytest.raises(UnusableInput, match="1 usable prompts, 2 are asked for .passed over: 2 empty prompt"):
        workload.freeze("own", dataset, 1, 2, context(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "cut in the mi', "own.jsonl:2: Input data was truncated"),
        ('["a list"]', "own.jsonl:2: Expected `object`, got `array`"),
        ('{"prompt": 5}', "own.jsonl:2: Expected `str | null`, got `int`"),
        ('{"text": "wrong key"}', 'own.jsonl:2: give either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": []}', 'own.jsonl:2: give either "prompt" or "messages"'),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "set chat_template = true"),
        ('{"prompt": "how many", "output_len": 0}', "own.jsonl:2: output_len is 0"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    own(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(UnusableInput) as raised:
        workload.freeze("own", OWN, 1, 2, context(tmp_path))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_line_without_any_length_is_named(tmp_path: Path) -> None:
    own(tmp_path, {"prompt": "how many apples"})
    with pytest.raises(UnusableInput, match='own.jsonl:1: has no "output_len"'):
        workload.freeze("own", Dataset(source="prompts", path="own.jsonl"), 1, 1, context(tmp_path))


def test_the_readers_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="own.jsonl: no such file"):
        workload.freeze("own", OWN, 1, 1, context(tmp_path))
    with pytest.raises(UnusableInput, match="--prompts FILE"):
        workload.freeze("own", Dataset(source="prompts"), 1, 1, context(tmp_path))


def test_a_byte_order_mark_and_blank_lines_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "how many"}\r\n\r\n{"prompt": "rivers"}\n')
    assert len(workload.freeze("own", OWN, 1, 2, context(tmp_path)).lines) == 2


# ---- data set files -------------------------------------------------------------------------------------------------


def test_case_52_an_offline_host_is_told_file_hash_and_place(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput) as raised:
        workload.freeze("s", Dataset(source="sharegpt"), 1, 1, context(tmp_path, datasets=tmp_path / "datasets"))
    message = str(raised.value)
    assert f"datasets/{sharegpt_file.PIN.file} is missing" in message
    assert sharegpt_file.PIN.sha256 in message and sharegpt_file.PIN.address in message and "\n" not in message


def test_a_file_of_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gsm8k-test.jsonl").write_text('{"question": "how many?", "answer": "3"}\n')
    with pytest.raises(UnusableInput, match="gsm8k-test.jsonl: sha256 is .*, pinned is 3730d312"):
        workload.freeze("g", Dataset(source="gsm8k"), 1, 1, context(tmp_path, datasets=tmp_path))


def test_an_unverified_pin_takes_the_file_and_gives_its_hash(tmp_path: Path) -> None:
    pin = pins.Pin(
        file="a.txt", url="x/{revision}/a", revision=pins.UNVERIFIED, sha256=pins.UNVERIFIED,
        licence="MIT", citation="none", provenance="not obtained",
    )  # fmt: skip
    (tmp_path / "a.txt").write_bytes(b"abc")
    assert pins.checked(pin, tmp_path) == (tmp_path / "a.txt", hashlib.sha256(b"abc").hexdigest())
    assert pin.address == "x/main/a"


def test_a_sharegpt_file_cut_in_the_middle_is_named(tmp_path: Path) -> None:
    whole = (HERE / "sharegpt.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) // 2])
    dataset = Dataset(source="random", input_len=32, output_len=8, path="cut.json")
    with pytest.raises(UnusableInput, match="cut.json: not a whole ShareGPT file: .*cut or damaged"):
        workload.freeze("r", dataset, 1, 2, context(tmp_path))


def test_too_few_conversations_are_counted() -> None:
    dataset = Dataset(source="random", input_len=32, output_len=8, path="sharegpt.json")
    with pytest.raises(UnusableInput, match=r"sharegpt.json: 22 usable prompts, 64 are asked for .*1 empty prompt"):
        workload.freeze("r", dataset, 1, 64, context(HERE))


def test_lengths_beyond_the_context_are_a_fault_of_the_scenario() -> None:
    dataset = Dataset(source="random-ids", input_len=512, output_len=128)
    with pytest.raises(UnusableInput, match="512 tokens in and 128 out are more than the context of 600"):
        workload.freeze("r", dataset, 1, 2, context(HERE, limit=600))


def test_a_cut_gzip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 400)[:-12])
    with pytest.raises(UnusableInput, match="a.jsonl.gz: not a whole gzip file"):
        list(jsonl.read(tmp_path / "a.jsonl.gz", dict))


@needs_shared
@pytest.mark.parametrize(("name", "rows"), [("gsm8k", 1319), ("humaneval", 164)])
def test_the_pinned_files_give_every_row(name: str, rows: int) -> None:
    dataset = Dataset(source=name, output_len=16)
    frozen = workload.freeze(name, dataset, 1, rows, context(HERE, datasets=SHARED))
    assert len({line.text for line in frozen.lines}) == rows
    assert frozen.source_sha256 == workload.source(name).PINS[0].sha256
    with pytest.raises(UnusableInput, match=f"{rows} usable prompts, {rows + 1} are asked for"):
        workload.freeze(name, dataset, 1, rows + 1, context(HERE, datasets=SHARED))


@needs_shared
def test_a_chat_template_wraps_every_prompt_of_a_data_set() -> None:
    dataset = Dataset(source="gsm8k", chat_template=True)
    for line in workload.freeze("g", dataset, 1, 8, context(HERE, datasets=SHARED)).lines:
        assert (
            line.text and line.text.startswith("<|im_start|>user\n") and line.text.endswith("<|im_start|>assistant\n")
        )


# ---- the model's folder ---------------------------------------------------------------------------------------------


def test_a_model_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="tokenizer.json is missing"):
        tokens.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(UnusableInput, match="tokenizer.json: not readable"):
        tokens.load(tmp_path)
    with pytest.raises(UnusableInput, match="tokenizer.json: damaged"):
        tokens.vocabulary_size(tmp_path)


def test_a_template_may_stand_in_its_own_file_or_a_named_list(tmp_path: Path) -> None:
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ bos_token }}U:{{ messages[0].content }}"},
    ]
    config = {"bos_token": {"content": "<s>"}, "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert chat.render(tmp_path, [chat.Message("user", "hi")]) == "U:hi"
    (tmp_path / "chat_template.jinja").write_text(
        "{%- for m in messages %}{{ m['role'] | tojson }}{% break %}{% endfor %}"
    )
    assert chat.render(tmp_path, [chat.Message("user", "hi")]) == '"user"'


def test_a_template_that_refuses_or_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="has no chat template"):
        chat.render(tmp_path, [chat.Message("user", "hi")])
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(UnusableInput, match="refuses a prompt: roles must alternate"):
        chat.render(tmp_path, [chat.Message("user", "hi")])
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(UnusableInput, match="refuses a prompt"):
        chat.render(tmp_path, [chat.Message("user", "hi")])


def test_the_record_names_the_tokenizer(tmp_path: Path) -> None:
    record = workload.write(workload.freeze("x", IDS, 1, 2, context(tmp_path)), tmp_path / "x.jsonl")
    assert record.tokenizer_sha256 == file_sha256(HERE / "model" / "tokenizer.json")
