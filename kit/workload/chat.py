"""Renders a model's own chat template to text, so that the native route gets what the chat route would make.

A second home of jinja2 beside `kit.report`: templates come with the model, so they run in the library's sandbox.
`strftime_now` stays undefined on purpose: templates then take their fixed date, and a frozen workload does not age.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kit.errors import UnusableInput

CONFIG, FILE = "tokenizer_config.json", "chat_template.jinja"


class Message(msgspec.Struct, frozen=True):
    """One OpenAI chat message with plain text."""

    role: str
    content: str


def render(folder: Path, messages: Sequence[Message]) -> str:
    """The prompt that ends where the assistant's answer begins, without the text-start token the server adds itself."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    config = _config(folder)
    text_start, text_end = (_token(config.get(key)) for key in ("bos_token", "eos_token"))
    try:
        text = environment.from_string(_template(folder, config)).render(
            messages=[msgspec.to_builtins(m) for m in messages],
            add_generation_prompt=True,
            bos_token=text_start,
            eos_token=text_end,
        )
    except TemplateError as error:
        raise UnusableInput(f"{folder.name}: the model's chat template refuses a prompt: {error}") from None
    return text.removeprefix(text_start) if text_start else text


def _template(folder: Path, config: dict[str, Any]) -> str:
    """The template's own file, else the one in the tokenizer's configuration; a named list gives its default."""
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise UnusableInput(
            f"{folder.name}: the model has no chat template ({CONFIG} or {FILE}); set chat_template = false"
        )
    return template


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UnusableInput(f"{folder.name}/{CONFIG}: damaged: {error}; get the model again") from None


def _token(entry: object) -> str:
    """A special token, which a configuration spells as text or as a table."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else ""


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
