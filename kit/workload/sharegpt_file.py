"""The ShareGPT V3 file that two sources draw from: its pin and how it is read. Knows nothing of tokens."""

from pathlib import Path

import msgspec

from kit.errors import UnusableInput
from kit.scenario import Dataset
from kit.workload.pins import Pin, checked
from kit.workload.source import Context, file_sha256

PIN = Pin(
    file="ShareGPT_V3_unfiltered_cleaned_split.json",
    url="https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/{revision}"
    "/ShareGPT_V3_unfiltered_cleaned_split.json",
    revision="192ab2185289094fc556ec8ce5ce1e8e587154ca",
    sha256="35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
    licence="Apache-2.0 as its page says; conversations shared by users, terms of the model's vendor may apply",
    citation="ShareGPT conversations, cleaned and split for Vicuna (anon8231489123/ShareGPT_Vicuna_unfiltered)",
    provenance="second-hand: both are named alike in several public repositories, read as stored text on 2026-11-30;"
    " the file itself was not at hand, so the hash was not recomputed here",
)


class Turn(msgspec.Struct, frozen=True):
    """What one side says."""

    value: str


class Conversation(msgspec.Struct, frozen=True):
    """One entry of the file; both spellings of its key occur."""

    conversations: list[Turn] = []
    conversation: list[Turn] = []


def read(dataset: Dataset, context: Context) -> tuple[list[tuple[str, str]], str, str]:
    """First two turns of every conversation that has two, whoever speaks; then the file's sha256 and its name.

    `dataset.path` names another file of the same form; its hash is recorded, not checked.
    """
    if dataset.path:
        path = context.base / dataset.path
        if not path.is_file():
            raise UnusableInput(f"{dataset.path}: no such file; datasets.*.path is seen from {context.base.name}/")
        seen = file_sha256(path)
    else:
        path, seen = checked(PIN, context.datasets)
    turns = [c.conversations or c.conversation for c in _decode(path)]
    return [(t[0].value, t[1].value) for t in turns if len(t) >= 2], seen, path.name


def _decode(path: Path) -> list[Conversation]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Conversation])
    except msgspec.MsgspecError as error:
        raise UnusableInput(
            f"{path.name}: not a whole ShareGPT file: {error}; it is cut or damaged, remove it and get it again"
        ) from None
