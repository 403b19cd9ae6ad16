"""`gsm8k`: the questions of GSM8K's test split, no examples in front; answers as long as the reference answer."""

import msgspec

from kit.scenario import Dataset
from kit.workload import chat, jsonl, tokens
from kit.workload.pins import Pin, checked
from kit.workload.source import Context, Draw, Row, shuffled, take

PINS = (
    Pin(
        file="gsm8k-test.jsonl",
        url="https://raw.githubusercontent.com/openai/grade-school-math/{revision}/grade_school_math/data/test.jsonl",
        revision="3101c7d5072418e28b9008a6636bde82a006892c",
        sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        licence="MIT",
        citation="Cobbe et al., Training Verifiers to Solve Math Word Problems, arXiv:2110.14168",
        provenance="hash computed from a copy of the 1,319 test questions on 2026-11-30; the revision is second-hand,"
        " named alike in several public repositories",
        branch="master",
    ),
)
TAKES = frozenset({"output_len", "chat_template"})


class Problem(msgspec.Struct, frozen=True):
    """One line of the file."""

    question: str
    answer: str


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Raises UnusableInput when the file is missing or another, or holds too few questions."""
    model = tokens.load(context.tokenizer)
    path, seen = checked(PINS[0], context.datasets)
    problems = shuffled([problem for _, problem in jsonl.read(path, Problem)], seed)
    rows = (Row(_text(p, dataset, context), dataset.output_len or len(model.encode(p.answer))) for p in problems)
    return msgspec.structs.replace(take(rows, requests, model, context, path.name), source_sha256=seen)


def _text(problem: Problem, dataset: Dataset, context: Context) -> str:
    if not dataset.chat_template:
        return problem.question
    return chat.render(context.tokenizer, [chat.Message("user", problem.question)])
