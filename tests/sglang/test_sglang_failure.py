"""Start-up failures by their messages."""

import pytest

from kit.sglang.failure import FAILURE_KINDS, LINE_LENGTH, TAIL_LINES, classify


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.", "out_of_memory"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. 1. set --mem-fraction-static to a smaller value",
         "out_of_memory"),
        ("RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise it",
         "pool_too_small"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.84",
         "pool_too_small"),
        ("launch_server.py: error: unrecognized arguments: --speculative-foo 3", "unsupported_flag"),
        ("launch_server.py: error: argument --attention-backend: invalid choice: 'x'", "unsupported_flag"),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use",
         "port_in_use"),
        ("OSError: models/none is not a local folder and is not a valid model identifier listed on", "model_not_found"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("AssertionError: something else", "unknown"),
    ],
)  # fmt: skip
def test_a_message_gives_its_kind_and_a_line_of_advice(line: str, kind: str) -> None:
    found, advice, tail = classify(f"[2026-11-30 08:00:00] Load weight begin. avail mem=1 GB\n{line}\n")
    assert found == kind
    assert found in FAILURE_KINDS
    assert advice
    assert "\n" not in advice
    assert line in tail


@pytest.mark.parametrize(
    "said",
    ["unrecognized arguments: --nosuchflag 3", "argument --attention-backend: invalid choice: 'x'",
     "the following arguments are required: --model-path/--model"],
)  # fmt: skip
def test_the_advice_quotes_the_flag_that_was_not_taken(said: str) -> None:
    advice = classify(f"usage: launch_server.py [-h]\nlaunch_server.py: error: {said}\n")[1]
    assert advice.startswith(f"{said}: this SGLang does not take")


@pytest.mark.parametrize("message", ["CUDA out of memory", "Not enough memory. Try to increase --mem-fraction-static"])
def test_case_55_the_advice_names_the_knobs_and_the_draft(message: str) -> None:
    advice = classify(message)[1]
    for knob in ("mem-fraction-static", "cuda-graph-max-bs-decode", "max-running-requests", "draft"):
        assert knob in advice


def test_the_arguments_line_is_no_cause() -> None:
    assert classify("[t] server_args=ServerArgs(comment='CUDA out of memory')")[0] == "unknown"


def test_the_tail_is_short_and_leaves_noise_out_but_keeps_the_cause() -> None:
    cause = "RuntimeError: No CUDA GPUs are available"
    noise = [
        "nanobind: leaked 4 instances!",
        ' - leaked function "x"',
        "x.py:1: UserWarning: y",
        "  warnings.warn(",
        "",
    ]
    text = "\n".join([cause, "Traceback (most recent call last):", '  File "x.py", line 1', *noise,
                      *(f"line {n}" for n in range(20)), "x" * 1000])  # fmt: skip
    kind, _, tail = classify(text)
    assert kind == "no_gpu"
    assert len(tail) == TAIL_LINES
    assert tail[0] == cause
    assert tail[-2] == "line 19"
    assert len(tail[-1]) <= LINE_LENGTH + 2
    assert not [line for line in tail if "leaked" in line or "Traceback" in line]


def test_a_chain_of_tracebacks_is_told_once_by_its_last_error() -> None:
    error = "OSError: Repo id must be in the form 'repo_name': '/models/none'. HFValidationError"
    text = f"""Traceback (most recent call last):
  File "hub.py", line 1, in check
    raise HFValidationError(
{error}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "x.py", line 1, in f
{error}
"""
    assert classify(text)[2] == (error,)
