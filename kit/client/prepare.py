"""Turns a frozen workload into the bytes of its requests, before any clock starts. Knows nothing of connections."""

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec

from kit.client.job import DriveJob, WorkloadLine
from kit.errors import UnusableInput

PATHS = {"generate": "/generate", "openai-chat": "/v1/chat/completions"}


def prepare(job: DriveJob) -> list[bytes]:
    """HTTP requests in the workload's order; raises UnusableInput that names the file and line."""
    return [_http_request(job, _body(job, line)) for line in _lines(job)]


def arrivals(job: DriveJob) -> list[float]:
    """Seconds since the trial's zero at which each request is due: a seeded Poisson process of `rate_per_s`."""
    assert job.rate_per_s is not None
    draw = random.Random(job.seed)
    return list(itertools.accumulate(draw.expovariate(job.rate_per_s) for _ in range(job.requests)))


def _lines(job: DriveJob) -> list[WorkloadLine]:
    path = Path(job.workload)
    try:
        with path.open("rb") as file:
            raw = list(itertools.islice(file, job.requests))
    except OSError as error:
        raise UnusableInput(f"workload {path.name}: {error.strerror}; freeze the workload first") from None
    if len(raw) < job.requests:
        raise UnusableInput(f"workload {path.name}: {len(raw)} requests, the job asks for {job.requests}")
    decoder = msgspec.json.Decoder(WorkloadLine)
    lines = []
    for number, text in enumerate(raw, 1):
        try:
            lines.append(decoder.decode(text))
        except msgspec.MsgspecError as error:
            raise UnusableInput(f"workload {path.name}:{number}: {error}") from None
    return lines


def _body(job: DriveJob, line: WorkloadLine) -> dict[str, Any]:
    output_len = job.output_len or line.output_len
    sampling = {"temperature": 0.0, **job.sampling}
    if job.ignore_eos:  # SGLang's own word: a gateway that never heard of it is not asked to know it
        sampling["ignore_eos"] = True
    if job.dialect == "generate":
        return {**_native_prompt(line), "sampling_params": {**sampling, "max_new_tokens": output_len}, "stream": True}
    return {"model": job.model, "messages": _messages(line), **sampling, "max_tokens": output_len, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip


def _native_prompt(line: WorkloadLine) -> dict[str, Any]:
    if line.input_ids is not None:
        return {"input_ids": line.input_ids}
    if line.text is not None:
        return {"text": line.text}
    raise UnusableInput(
        f"workload request {line.index}: /generate takes text or input_ids, not messages; use dialect openai-chat"
    )


def _messages(line: WorkloadLine) -> list[dict[str, Any]]:
    if line.messages is not None:
        return line.messages
    if line.text is not None:
        return [{"role": "user", "content": line.text}]
    raise UnusableInput(
        f"workload request {line.index}: a chat takes messages or text, not input_ids; use dialect generate"
    )


def _http_request(job: DriveJob, body: dict[str, Any]) -> bytes:
    content = msgspec.json.encode(body)
    head = (
        f"POST {PATHS[job.dialect]} HTTP/1.1\r\nHost: {job.host}:{job.port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nAccept-Encoding: identity\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
