"""What SGLang answers over HTTP, through an `Endpoint`. Knows no engine, and nothing of how requests are measured."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.engine import Endpoint
from kit.errors import RunFailed, ServerFailed
from kit.measurements import Flush, ServerFacts
from kit.sglang import launch, log, versions
from kit.sglang.failure import classify

PROBE = json.dumps({"text": "Hello", "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}).encode()
PROBE_TIMEOUT_S = 120.0  # the first token of a new server may wait for kernels to be compiled
FIRST_POLL_S, POLL_S = 0.05, 0.5  # a server takes a tenth of a second or minutes to come up
# Names that SGLang itself puts in the place of the one that was asked for.
ALSO_CALLED = {"NEXTN": ("EAGLE", "FROZEN_KV_MTP"), "EAGLE": ("FROZEN_KV_MTP",)}
FLUSH_WAIT_S = 30
FLUSH_TRIES = 20
FLUSH_LIMIT_S = 120.0


def wait_until_generates(
    endpoint: Endpoint, log_path: Path, timeout_s: float, on_line: Callable[[str], None] | None = None
) -> float:
    """Waits until the server has generated a token and returns the seconds that took.

    An open port is no sign: a server listens before it can answer. `on_line` sees each line of the log as it comes.
    Raises ServerFailed with the class of the failure and the log's last lines when the server ends or time runs out.
    """
    begin = time.monotonic()
    tail, pause_s = _Tail(log_path, on_line), FIRST_POLL_S
    while True:
        tail.read()
        remaining_s = timeout_s - (time.monotonic() - begin)
        if endpoint.exit_code() is not None:
            tail.read()
            raise failed(endpoint, log_path)
        if remaining_s <= 0:
            kind, _, lines = classify(_text(log_path))
            raise ServerFailed(
                f"the server did not generate within {timeout_s:g} s; "
                f"if it only needs longer, give it with --set server.start_timeout_s=…; its log: {log_path}",
                "timed_out" if kind == "unknown" else kind,
                lines,
            )
        if _generates(endpoint, min(PROBE_TIMEOUT_S, remaining_s)) and endpoint.exit_code() is None:
            tail.read()
            return time.monotonic() - begin
        time.sleep(pause_s)
        pause_s = min(1.25 * pause_s, POLL_S)


def failed(endpoint: Endpoint, log_path: Path) -> ServerFailed:
    """The error for a server that has ended: what its log says of the cause, and the way out."""
    kind, advice, lines = classify(_text(log_path))
    code = endpoint.exit_code()
    if kind == "unknown" and code in (137, -9):
        kind, advice = "out_of_memory", "it was killed, most likely because the machine ran out of memory"
    said = f"the server ended with code {code} ({kind.replace('_', ' ')}): {advice}; its log: {log_path}"
    return ServerFailed(said, kind, lines)


def server_info(endpoint: Endpoint) -> dict[str, Any]:
    """What the server says of itself; the older path where the newer does not exist. Raises RunFailed on no answer."""
    reply = endpoint.call("GET", "/server_info")
    if reply.status == 404:
        reply = endpoint.call("GET", "/get_server_info")
    if reply.status != 200:
        raise RunFailed(f"/server_info answered {reply.status}: {_short(reply.body)}; see the server's log")
    try:
        info = json.loads(reply.body)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise RunFailed(f"/server_info answered no JSON object: {_short(reply.body)}")
    return info


def named(argv: list[str], name: str) -> list[str]:
    """A server's arguments with a name by which it can be told from another server on its port."""
    return [*argv, "--served-model-name", name]


def own_info(endpoint: Endpoint, name: str, port: int, log_path: Path) -> dict[str, Any]:
    """`server_info` of the very server that was started as `name`: it lives, and it is the one that answers.

    Raises ServerFailed when it has ended, RunFailed when another one answers on its port: what was measured is not its.
    """
    if endpoint.exit_code() is not None:
        raise failed(endpoint, log_path)
    info = server_info(endpoint)
    if info.get("served_model_name") != name:
        raise RunFailed(
            f"another server answers on port {port}, not the one that was started; "
            f"end it, or choose another port: --set server.port={port + 1}"
        )
    return info


def check_algorithm(asked: object, said: ServerFacts) -> None:
    """Holds what the server says it runs against what it was asked for. Raises RunFailed when they differ."""
    wanted, runs = (str(a).upper() if a else None for a in (asked, said.algorithm))
    if runs != wanted and runs not in ALSO_CALLED.get(wanted or "", ()):
        raise RunFailed(
            f"the server runs speculative-algorithm {said.algorithm or 'none'}, asked for was {asked or 'none'}; "
            "correct the arm's flags"
        )


def facts(log_text: str, info: dict[str, Any], env: dict[str, str] | None = None) -> ServerFacts:
    """Merges what the log and /server_info say of a server, and names where they differ.

    `pool_tokens` and `max_running_requests` are those of the whole server: one rank's times the data-parallel size.
    `env` is the server's, where a forced accept length stands. A missing log or answer leaves None, never a guess.
    """
    said = log.read_startup(log_text)
    given = {**said.arguments, **info}
    ranks = _integer(given, "dp_size") or said.ranks
    tokens = said.tokens if said.tokens is not None else _integer(info, "max_total_num_tokens")
    running = _running_limit(info) if said.max_running_requests is None else said.max_running_requests
    target = said.pools[0] if said.pools else None
    dtype = given.get("kv_cache_dtype")
    return ServerFacts(
        version=given.get("version"),
        device=given.get("device"),
        pool_tokens=None if tokens is None else tokens * ranks,
        pools=said.pools,
        loads=said.loads,
        graphs=said.graphs,
        max_running_requests=None if running is None else running * ranks,
        max_running_requests_asked=None if said.cap_warning else _integer(given, "max_running_requests"),
        cap_warning=said.cap_warning,
        chunked_prefill_tokens=said.chunked_prefill_tokens or _integer(given, "chunked_prefill_size"),
        context_tokens=said.context_tokens or _integer(given, "context_length"),
        available_gib=said.available_gib,
        graph_max_batch=_graph_max_batch(said),
        kv_dtype=target.dtype if target and target.dtype else dtype if dtype != "auto" else None,
        page_size=_integer(given, "page_size"),
        mem_fraction_static=given.get("mem_fraction_static"),
        max_total_tokens_asked=_integer(given, "max_total_tokens"),
        load_format=given.get("load_format"),
        algorithm=given.get("speculative_algorithm"),
        draft_tokens=_integer(given, "speculative_num_draft_tokens"),
        draft_steps=_integer(given, "speculative_num_steps"),
        forced_accept_length=launch.forced_accept_length(env or {}),
        random_seed=_integer(given, "random_seed"),
        mismatches=_mismatches(said, info),
        unknown_version=versions.find(info.get("version")) is None,
    )


def flush(endpoint: Endpoint, tries: int = FLUSH_TRIES, pause_s: float = 0.5) -> Flush:
    """Empties the server's caches and counters before a trial; only a 200 counts.

    Newer servers wait until they are idle (`?timeout=`); older ones answer 400 at once and are asked again after a
    pause. Raises RunFailed when no try succeeds, since a trial on warm caches is worth nothing.
    """
    begin = time.monotonic()
    for number in range(1, tries + 1):
        reply = endpoint.call("POST", f"/flush_cache?timeout={FLUSH_WAIT_S}", timeout_s=FLUSH_WAIT_S + 15.0)
        if reply.status == 200:
            return Flush(tries=number, status=200, seconds=time.monotonic() - begin)
        if endpoint.exit_code() is not None:
            raise RunFailed(f"the server ended with code {endpoint.exit_code()} before the flush; see its log")
        if time.monotonic() - begin > FLUSH_LIMIT_S:
            break
        time.sleep(pause_s)
    raise RunFailed(
        f"/flush_cache answered {reply.status} on {number} tries: {_short(reply.body)}; "
        "another client may be using this server"
    )


def avg_accept_length(info: dict[str, Any]) -> float | None:
    """The server's own mean accept length since the last flush; None where it has none or where ranks would mix."""
    states = _states(info)
    value = states[0].get("avg_spec_accept_length") if len(states) == 1 else None
    return float(value) if isinstance(value, int | float) else None


class _Tail:
    """Hands the lines that a growing file got since the last look to a listener."""

    def __init__(self, path: Path, on_line: Callable[[str], None] | None) -> None:
        self._path = path
        self._on_line = on_line
        self._offset = 0

    def read(self) -> None:
        if self._on_line is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._on_line(line)


def _generates(endpoint: Endpoint, timeout_s: float) -> bool:
    reply = endpoint.call("POST", "/generate", PROBE, timeout_s)
    if reply.status != 200:
        return False
    try:
        return int(json.loads(reply.body)["meta_info"]["completion_tokens"]) >= 1
    except (ValueError, KeyError, TypeError):
        return False


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _short(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200] or "an empty body"


def _states(info: dict[str, Any]) -> list[dict[str, Any]]:
    states = info.get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []


def _running_limit(info: dict[str, Any]) -> int | None:
    """The limit in force on one rank; the top-level key is only what was asked for."""
    states = _states(info)
    return _integer(states[0], "effective_max_running_requests_per_dp") if states else None


def _integer(table: dict[str, Any], key: str) -> int | None:
    value = table.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _graph_max_batch(said: log.Startup) -> int | None:
    """The largest batch that decodes in a graph: the target's own set, not the draft's. None without graphs."""
    sizes = [size for graph in said.graphs if "draft" not in graph.name and "prefill" not in graph.name
             for size in graph.batch_sizes]  # fmt: skip
    if sizes or not said.graphs:
        return max(sizes, default=None)
    return _integer(said.arguments, "cuda_graph_max_bs")


def _mismatches(said: log.Startup, info: dict[str, Any]) -> list[str]:
    found = list(said.uneven)
    pairs = (
        ("max_total_num_tokens", said.tokens, _integer(info, "max_total_num_tokens")),
        ("max_running_requests", said.max_running_requests, _running_limit(info)),
    )
    for name, logged, answered in pairs:
        if logged is None:
            found.append(f"the log does not say {name}")
        elif answered is not None and answered != logged:
            found.append(f"{name}: the log says {logged}, /server_info {answered}")
    row = versions.find(info.get("version"))
    if row and said.tokens is not None:
        if not said.pools:
            found.append(f"the log has no KV cache line, which {row.release} prints")
        elif row.kv_line_dtype and said.pools[0].dtype is None:
            found.append(f"the KV cache line names no dtype, which {row.release} prints")
    targets = [pool.tokens for pool in said.pools if pool.role == "target"]
    if len(targets) == 1 and said.tokens is not None and targets[0] != said.tokens:
        found.append(f"pool: the KV cache line says {targets[0]} tokens, the summary line {said.tokens}")
    return found
