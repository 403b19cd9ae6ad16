"""Runs one function of kit.gpu or kit.gpu_guard in this process and prints what it answered as one line of JSON.

python speak.py VERB ARGUMENT ...
python speak.py each '[["MACHINE FILE", ["VERB", "ARGUMENT", ...]], ...]'     one after the other, a line for each
"""

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kit import gpu, gpu_guard, scenario
from kit.errors import KitError


def say(answer: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def hold(
    state: str,
    lock: str,
    mhz: str = "900",
    cards: str = "0",
    *,
    no_lock: bool = False,
    fork: bool = False,
    wait: bool = True,
) -> None:
    """Holds the lock until stdin says a line, or no longer than it takes to say what came of it.

    With `fork` a child keeps all pipes open for as long as it lives.
    """
    table = msgspec.convert({"lock": lock, "lock_mhz": int(mhz)}, scenario.Gpu)
    with gpu_guard.hold_lock(table, numbers(cards), Path(state), no_lock) as record:
        child = os.fork() if fork else None
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say({"record": record, "child": child})
        if wait:
            sys.stdin.readline()


def sample(path: str, seconds: str, cards: str = "0", avoid: str = "") -> None:
    """Samples for some seconds, or until stdin says a line."""
    with gpu.Sampler(numbers(cards), Path(path), numbers(avoid)) as sampler:
        select.select([sys.stdin], [], [], float(seconds))
    say({"samples": sampler.samples, "errors": sampler.errors})


def choose(table: str) -> None:
    cards, _ = gpu.facts()
    say(gpu.select(msgspec.json.decode(table, type=scenario.Gpu), cards))


def check(table: str) -> None:
    say(gpu.checks(msgspec.json.decode(table, type=scenario.Gpu)))


VERBS = {
    "facts": lambda: say(gpu.facts()),
    "select": choose,
    "checks": check,
    "sample": sample,
    "stale": lambda state: say(gpu_guard.release_stale(Path(state))),
    "hold": hold,
    "hold-briefly": lambda *a: hold(*a, wait=False),
    "hold-off": lambda *a: hold(*a, no_lock=True, wait=False),
    "hold-fork": lambda *a: hold(*a, fork=True),
}


def speak(verb: str, *arguments: str) -> None:
    try:
        VERBS[verb](*arguments)
    except KitError as error:
        say({"error": str(error), "kind": type(error).__name__})


def each(orders: str) -> None:
    for file, command in msgspec.json.decode(orders):
        os.environ["NVML_STANDIN"] = file
        speak(*command)


if __name__ == "__main__":
    if sys.argv[1] == "each":
        each(sys.argv[2])
    else:
        speak(*sys.argv[1:])
    os._exit(0)  # all is said; some fifty of these start, and taking the interpreter apart takes long
