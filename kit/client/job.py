"""What the client is asked to do: one workload, one load, one server. Standard library and msgspec only."""

from typing import Any, Literal

import msgspec


class DriveJob(msgspec.Struct, frozen=True, kw_only=True):
    """Requests `0 .. requests - 1` of a frozen workload file, sent in order, and how. Seconds and tokens.

    `workload` is the path as the client sees it. `concurrency` requests are kept in flight; 0 means no cap, and
    `rate_per_s` then gives seeded Poisson arrivals. A "warmup" phase marks its records so; `output_len` overrides the
    workload's lengths, since warm-ups are short. `sampling` goes with every request, temperature always. `cores` are
    the CPU cores that the client pins itself to. The engine fills in `host` and `cores` and maps `workload`.
    """

    host: str
    port: int
    workload: str
    requests: int
    concurrency: int
    phase: Literal["warmup", "measure"] = "measure"
    output_len: int | None = None
    rate_per_s: float | None = None
    seed: int = 0
    dialect: Literal["generate", "openai-chat"] = "generate"
    model: str = ""
    ignore_eos: bool = True
    sampling: dict[str, Any] = msgspec.field(default_factory=lambda: {"temperature": 0.0})
    request_timeout_s: float = 600.0
    silence_timeout_s: float = 120.0
    cores: list[int] = []


class WorkloadLine(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen request. Exactly one of `text`, `input_ids` and `messages` is set; lengths are tokens asked for."""

    index: int
    output_len: int
    text: str | None = None
    input_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    input_len: int | None = None
