"""`humaneval`: code, the function heads of HumanEval as they are; answers as long as the reference solution."""

import msgspec

from kit.scenario import Dataset
from kit.workload import chat, jsonl, tokens
from kit.workload.pins import Pin, checked
from kit.workload.source import Context, Draw, Row, shuffled, take

PINS = (
    Pin(
        file="HumanEval.jsonl.gz",
        url="https://raw.githubusercontent.com/openai/human-eval/{revision}/data/HumanEval.jsonl.gz",
        revision="6d43fb980f9fee3c892a914eda09951f772ad10d",
        sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        licence="MIT",
        citation="Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374",
        provenance="hash computed from a copy of the 164 tasks on 2026-11-30; the revision is second-hand, named alike"
        " in several public repositories",
        branch="master",
    ),
)
TAKES = frozenset({"output_len", "chat_template"})
INSTRUCTION = "Complete this Python function. Answer with the whole function.\n\n"


class Task(msgspec.Struct, frozen=True):
    """One line of the file."""

    prompt: str
    canonical_solution: str


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Raises UnusableInput when the file is missing or another, or holds too few tasks (there are 164)."""
    model = tokens.load(context.tokenizer)
    path, seen = checked(PINS[0], context.datasets)
    tasks = shuffled([task for _, task in jsonl.read(path, Task)], seed)
    rows = (
        Row(_text(t, dataset, context), dataset.output_len or len(model.encode(t.canonical_solution))) for t in tasks
    )
    return msgspec.structs.replace(take(rows, requests, model, context, path.name), source_sha256=seen)


def _text(task: Task, dataset: Dataset, context: Context) -> str:
    """The bare head is a text to go on with; a chat model is told what to do with it."""
    if not dataset.chat_template:
        return task.prompt
    return chat.render(context.tokenizer, [chat.Message("user", INSTRUCTION + task.prompt)])
