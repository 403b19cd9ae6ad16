"""Why a server did not start or died, told from its log. Knows the messages, not the server."""

import re

# In the order of looking: the plain cause first, since a dying server also prints what follows from it.
CAUSES = (
    (
        "unsupported_flag",
        r"error: (?:unrecognized arguments|ambiguous option|argument -)|the following arguments are required",
        "this SGLang does not take a flag as given; correct it in the scenario's flags",
    ),
    (
        "port_in_use",
        r"address already in use|error while attempting to bind on address|[Pp]ort \d+ is (?:not available|already)",
        "the port is taken by another program; end it or set another with --set server.port=…",
    ),
    (
        "pool_too_small",
        r"Loaded weights leave no GPU memory for the KV cache|Not enough memory[.;:].*mem-fraction-static",
        "no room is left for the KV pool: raise mem-fraction-static, leave out or quantise the draft, "
        "or lower cuda-graph-max-bs-decode and max-running-requests",
    ),
    (
        "out_of_memory",
        r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|std::bad_alloc|Cannot allocate memory",
        "memory ran out: lower mem-fraction-static, cuda-graph-max-bs-decode or max-running-requests, "
        "leave out or quantise the draft, or end what else uses the card",
    ),
    (
        "no_gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient|"
        r"No accelerator .*is available|no CUDA-capable device|Torch not compiled with CUDA enabled|"
        r"CUDA driver initialization failed",
        "no usable GPU: check nvidia-smi, the driver and the card's number",
    ),
    (
        "model_not_found",
        r"is not a local folder and is not a valid model identifier|Repository Not Found|RepositoryNotFoundError|"
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|Incorrect path_or_model_id|HFValidationError|"
        r"does not appear to have a file named|Can't load (?:the configuration|tokenizer|the model)|"
        r"Cannot find any model weights|outgoing traffic has been disabled|Unrecognized model in",
        "a model's folder is missing or incomplete: check [model] and [draft] path and that the weights are all there",
    ),
)
FAILURE_KINDS = (*(kind for kind, _, _ in CAUSES), "timed_out", "unknown")
TAIL_LINES = 8
LINE_LENGTH = 300
NOISE = re.compile(
    r"^\s|^$|^nanobind: | - (?:leaked |\.\.\. skipped)|Warning: |^usage: |kill_process_tree called|^See https?://|"
    r"^Traceback \(most recent|^The above exception was|^During handling of the above|INFO:  |"
    r"server_args=|Ignore import error"
)


def classify(text: str) -> tuple[str, str, tuple[str, ...]]:
    """The kind of the failure (one of FAILURE_KINDS), one line of advice, and the log's last meaningful lines."""
    for kind, pattern, advice in CAUSES:
        lines = [line for line in text.splitlines() if re.search(pattern, line) and "server_args=" not in line]
        if lines:
            plain = [line for line in lines if not line.startswith(" ")]  # an indented one is a traceback's code
            cause = (plain or lines)[-1]
            return kind, _quoted(cause) + advice, _tail(text, cause)
    return "unknown", "the last lines of the log tell more", _tail(text, None)


def _quoted(cause: str) -> str:
    """What argparse says of a flag, which names it; nothing of other causes."""
    said = re.search(r"(?:error: )?((?:unrecognized arguments|ambiguous option|argument -|the following arg).*)", cause)
    return f"{said[1].strip()[:LINE_LENGTH]}: " if said else ""


def _tail(text: str, cause: str | None) -> tuple[str, ...]:
    meant = [line.rstrip() for line in text.splitlines() if not NOISE.search(line)]
    lines = list(dict.fromkeys(meant[::-1]))[:TAIL_LINES][::-1]
    if cause is not None and cause.rstrip() not in lines:
        lines = [cause.strip(), *lines[1 - TAIL_LINES :]]
    return tuple(line if len(line) <= LINE_LENGTH else line[:LINE_LENGTH] + " …" for line in lines)
