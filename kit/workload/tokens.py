"""The model's own tokenizer, read from its folder: the one home of the `tokenizers` library. Knows no data sets."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kit.errors import UnusableInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"


class _Model(msgspec.Struct, frozen=True):
    """The part of tokenizer.json that maps text to ids: a table, or a list of scored pieces."""

    vocab: dict[str, int] | list[Any]


class _File(msgspec.Struct, frozen=True):
    model: _Model


class Tokens:
    """Encodes and decodes as the server's tokenizer does: special tokens added, none hidden, nothing cut or padded."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of the text, with what the model's template for single texts adds."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of the ids, special tokens spelled out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    @property
    def added(self) -> int:
        """How many tokens `encode` adds by itself, such as a beginning of text."""
        return int(self._tokenizer.num_special_tokens_to_add(False))


@functools.lru_cache(maxsize=2)
def load(folder: Path) -> Tokens:
    """The tokenizer of a model's folder. Raises UnusableInput when it has none or a broken one."""
    from tokenizers import Tokenizer

    text = _text(folder)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the library raises bare Exception, and nothing narrower
        raise UnusableInput(f"{folder.name}/{FILE}: not readable: {error}; get the model again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Tokens(tokenizer)


def vocabulary_size(folder: Path) -> int:
    """Ids of the base vocabulary, added tokens apart: what SGLang's client draws random ids from."""
    try:
        return len(msgspec.json.decode(_text(folder), type=_File).model.vocab)
    except msgspec.MsgspecError as error:
        raise UnusableInput(f"{folder.name}/{FILE}: damaged: {error}; get the model again") from None


def _text(folder: Path) -> str:
    try:
        return (folder / FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UnusableInput(
            f"{folder.name}/{FILE} is missing: prompts are measured and cut with the model's own tokenizer;"
            " `invoke fetch` gets it, or put the file there"
        ) from None
    except UnicodeDecodeError as error:
        raise UnusableInput(f"{folder.name}/{FILE}: not UTF-8: {error}; get the model again") from None
