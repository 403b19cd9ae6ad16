"""What SGLang prints: the start-up log, the lines of a trial, and why a start failed. Knows no server and no file.

Every line may carry a prefix `[time RANK] `; RANK is empty on one GPU. Sizes are GiB, as SGLang's "GB" means 2^30.
"""

import ast
import re
from typing import Any

import msgspec

from kit.measurements import Graph, Load, LogCounts, Pool

PREFIX = re.compile(r"^\[[\d-]+ [\d:.]+(?P<rank>(?: \w+)*)\] ")
POOL = re.compile(
    r"(?:(?P<label>Full|SWA) )?KV [Cc]ache (?:is )?allocated\.(?: dtype: (?P<dtype>[\w.]+),)? "
    r"#tokens: (?P<tokens>\d+), (?:K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)"
)
LIMITS = re.compile(  # the stable anchor: the same from 0.4.10 to 0.5.23
    r"max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+), max_prefill_tokens=\d+, "
    r"max_running_requests=(?P<running>\d+), context_len=(?P<context>\d+), "
    r"available_(?:gpu|cpu)_mem=(?P<free>[\d.]+) GB"
)
WEIGHTS = re.compile(
    r"Load weight end\. (?:elapsed=(?P<seconds>[\d.]+) s, )?type=(?P<type>\w+), (?:.*?, )?"
    r"avail mem=(?P<free>[\d.]+) GB, mem usage=(?P<used>-?[\d.]+) GB"
)
GRAPH_BEGIN = re.compile(r"Capture (?P<name>.*?) ?CUDA graph begin\..*?bs=\[(?P<sizes>[\d, ]*)\]")
GRAPH_SIZES = re.compile(r"Capture cuda graph bs \[(?P<sizes>[\d, ]*)\]")
GRAPH_END = re.compile(
    r"Capture (?P<name>.*?) ?(?:CUDA|cuda) graph end\. (?:elapsed=|Time elapsed: )(?P<seconds>[\d.]+) s[,.] "
    r"mem usage=(?P<used>-?[\d.]+) GB"
)
CAP_WARNING = "for speculative decoding. You can override this by explicitly setting --max-running-requests"
ARGUMENTS = re.compile(r"server_args=(ServerArgs\(.*\)|\{.*\})\s*$")
READY = "The server is fired up and ready to roll!"

# Lines that mean that something was compiled or captured while requests ran, by SGLang and the libraries under it.
COMPILED = re.compile(
    r"(?:CUDA|cuda) graph begin\.|DeepGEMM JIT|JIT compil|Compiling .*kernel|torch\.compile.*(?:begin|start)|"
    r"Running FlashInfer autotune|Autotun|AUTOTUNE |flashinfer\.jit: |Loading JIT ops|^\[\d+/\d+\] .*(?:nvcc|c\+\+)",
)


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """What a start-up log says, one rank's view. `ranks` counts data-parallel ranks; `uneven`: where they differ."""

    pools: list[Pool]
    loads: list[Load]
    graphs: list[Graph]
    tokens: int | None
    chunked_prefill_tokens: int | None
    max_running_requests: int | None
    context_tokens: int | None
    available_gib: float | None
    cap_warning: bool
    arguments: dict[str, Any]
    ranks: int
    uneven: list[str]


def read_startup(text: str) -> Startup:
    """Reads a start-up log of any version; what it does not say is None or empty. Never raises."""
    lines = text.split(READY)[0].splitlines()
    by_rank = _by_rank(lines)
    first = next((own for own in by_rank.values() if any(POOL.search(line) for line in own)), lines)
    limits = [match for line in lines if (match := LIMITS.search(line))]
    anchor = limits[0] if limits else None
    return Startup(
        pools=_pools(first),
        loads=_loads(first),
        graphs=_graphs(first),
        tokens=int(anchor["tokens"]) if anchor else None,
        chunked_prefill_tokens=int(anchor["chunk"]) if anchor else None,
        max_running_requests=int(anchor["running"]) if anchor else None,
        context_tokens=int(anchor["context"]) if anchor else None,
        available_gib=float(anchor["free"]) if anchor else None,
        cap_warning=any(CAP_WARNING in line for line in lines),
        arguments=_arguments(lines),
        ranks=len({_data_rank(rank) for rank in by_rank if "DP" in rank}) or 1,
        uneven=_uneven(limits),
    )


def counts(text: str, has_graphs: bool) -> LogCounts:
    """The decode, prefill and retraction lines of one trial's slice of the log.

    `has_graphs`: whether the server captured graphs at all; without them no decode step is called eager. Running,
    queue and usage are those of the decode lines, each of which is a sample (one per `--decode-log-interval` steps).
    """
    lines = text.splitlines()
    decode = [line for line in lines if "Decode batch" in line]
    prefill = [line for line in lines if "Prefill batch" in line]
    running, queue = _values("#running-req", decode), _values("#queue-req", decode)
    waiting = queue + _values("#queue-req", prefill)
    usage = [float(value) for line in decode + prefill for value in re.findall(r"usage: ([\d.]+)", line)]
    cached = _values("#cached-token", prefill)
    return LogCounts(
        decode_lines=len(decode),
        eager_decode_lines=sum("cuda graph: False" in line for line in decode) if has_graphs else 0,
        max_running=max(running, default=None),
        mean_running=sum(running) / len(running) if running else None,
        max_queue=max(waiting, default=None),
        mean_queue=sum(queue) / len(queue) if queue else None,
        max_token_usage=max(usage, default=None),
        retracted_requests=sum(_values("#retracted_reqs", lines)),
        cached_tokens=sum(cached) if cached else None,
        compiled=any(COMPILED.search(PREFIX.sub("", line)) for line in lines),
    )


def _values(name: str, lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.search(rf"{name}: (\d+)", line))]


def _by_rank(lines: list[str]) -> dict[str, list[str]]:
    """Lines by the rank in their prefix; a line without one (a draft printed by a library) belongs to no rank."""
    ranks: dict[str, list[str]] = {}
    for line in lines:
        match = PREFIX.match(line)
        if match:
            ranks.setdefault(match["rank"].strip(), []).append(line)
    return ranks


def _data_rank(rank: str) -> str:
    return next((part for part in rank.split() if part.startswith("DP")), "")


def _uneven(limits: list[re.Match[str]]) -> list[str]:
    tokens = sorted({int(match["tokens"]) for match in limits})
    return [f"ranks have pools of different sizes: {tokens} tokens"] if len(tokens) > 1 else []


def _pools(lines: list[str]) -> list[Pool]:
    """The first KV line is the target's; one after it with less per token is the draft's, by the order of the log."""
    found = [match for line in lines if (match := POOL.search(line))]
    pools: list[Pool] = []
    for match in found:
        role = "target" if not pools or match["label"] == "SWA" and pools[-1].role == "target" else "draft"
        pools.append(
            Pool(
                role=role,
                tokens=int(match["tokens"]),
                k_gib=_number(match["k"]),
                v_gib=_number(match["v"]),
                kv_gib=_number(match["kv"]),
                dtype=(match["dtype"] or "").removeprefix("torch.") or None,
            )
        )
    return pools


def _loads(lines: list[str]) -> list[Load]:
    return [
        Load(
            model_type=match["type"],
            memory_gib=float(match["used"]),
            available_gib=float(match["free"]),
            seconds=_number(match["seconds"]),
        )
        for line in lines
        if (match := WEIGHTS.search(line))
    ]


def _graphs(lines: list[str]) -> list[Graph]:
    """Captured sets in order. The older form does not name the target's and prints its sizes on a line of their own."""
    sizes: list[int] = []
    graphs: list[Graph] = []
    for line in lines:
        begin = GRAPH_BEGIN.search(line) or GRAPH_SIZES.search(line)
        if begin:
            sizes = [int(size) for size in begin["sizes"].split(",") if size.strip()]
        end = GRAPH_END.search(line)
        if end:
            graphs.append(
                Graph(
                    name=end["name"] or "target",
                    batch_sizes=sizes,
                    seconds=float(end["seconds"]),
                    memory_gib=float(end["used"]),
                )
            )
            sizes = []
    return graphs


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _arguments(lines: list[str]) -> dict[str, Any]:
    """The resolved arguments, printed as a dict or as `ServerArgs(…)`; values that are no literals are left out."""
    match = next((found for line in lines if (found := ARGUMENTS.search(line))), None)
    if not match:
        return {}
    try:
        tree = ast.parse(match[1], mode="eval").body
    except (SyntaxError, ValueError):
        return {}
    pairs: list[tuple[str, ast.expr]] = []
    if isinstance(tree, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in tree.keywords if keyword.arg]
    elif isinstance(tree, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(tree.keys, tree.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    return {name: value for name, node in pairs for value in _literal(node)}


def _literal(node: ast.expr) -> list[Any]:
    try:
        return [ast.literal_eval(node)]
    except ValueError:
        return []
