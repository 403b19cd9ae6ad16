"""On one running server: SGLang's own client beside the kit's, in turn, and the GPU sampler on beside off.

`python -m bench.crosscheck --scenario h200-break-even --arm accept-3 --point 1:30:1 --point 16:320:1`

A B A B at each point: the kit, SGLang, the kit, SGLang, each on a flushed cache with the same token ids, lengths and
concurrency. Many short turns tell more than few long ones, since a server's speed wanders: take 30 s in all or more.
SGLang's own definitions are recomputed from the kit's records: a difference is the clients', not a definition's.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from tabulate import tabulate

from kit import gpu, scenario, setup, workload
from kit.analysis import metrics
from kit.analysis.chunks import Chunks
from kit.analysis.quantiles import Numbers
from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch
from kit.measurements import ClientWatch, DriveEnd, RequestRecord
from kit.run_folder import Setup
from kit.sglang import api, launch

ROOT = Path(__file__).resolve().parent.parent
Take: TypeAlias = Callable[[list[RequestRecord]], float]
FIGURES: dict[str, Take] = {  # SGLang's name -> how it is taken from the kit's records, in SGLang's own definition
    "total_input_tokens": lambda r: sum(x.prompt_tokens or 0 for x in r),
    "total_output_tokens": lambda r: _tokens(r),
    "output_throughput": lambda r: _tokens(r) / _span_s(r),
    "mean_ttft_ms": lambda r: _mean(r, "ttft_text_p50_ms"),
    "median_ttft_ms": lambda r: _quantile(r, "ttft_text_p50_ms", 0.5),
    "p99_ttft_ms": lambda r: _quantile(r, "ttft_text_p50_ms", 0.99),
    "mean_tpot_ms": lambda r: _mean(r, "tpot_sglang_mean_ms"),
    "mean_itl_ms": lambda r: _mean(r, "itl_sglang_p50_ms"),
    "median_itl_ms": lambda r: _quantile(r, "itl_sglang_p50_ms", 0.5),
    "p99_itl_ms": lambda r: _quantile(r, "itl_sglang_p99_ms", 0.99),
}
PAUSE_S = 1.0  # SGLang's client waits as long between its flush and its first request
NOTES = """
Answers of one length keep requests that began together in step, in each client by the groups of its own start: compare
TTFT and TPOT where one user asks or the lengths differ. SGLang's duration runs from before its first request to after
its last, plus a call of /server_info, so its throughput is lower by that; TTFT is the first chunk with text in both;
ITL divides each gap by its chunk's tokens in both."""


def _values(records: list[RequestRecord], tag: str) -> Numbers:
    return metrics.values_of_answers(metrics.BY_TAG[tag], Chunks(records))


def _mean(records: list[RequestRecord], tag: str) -> float:
    return float(np.mean(_values(records, tag)))


def _quantile(records: list[RequestRecord], tag: str, q: float) -> float:
    return float(np.quantile(_values(records, tag), q))


def _tokens(records: list[RequestRecord]) -> int:
    return sum(r.completion_tokens or 0 for r in records)


def _span_s(records: list[RequestRecord]) -> float:
    return max(r.chunks[-1][0] for r in records) - min(r.sent_s or 0.0 for r in records)


@dataclass(frozen=True)
class Point:
    """A load: requests kept in flight, requests in all, and how far lengths spread (1: all of the full length)."""

    users: int
    requests: int
    range_ratio: float

    @classmethod
    def parse(cls, text: str) -> "Point":
        """`USERS:REQUESTS:RATIO`, such as `16:1600:0.25`."""
        users, requests, ratio = text.split(":")
        return cls(int(users), int(requests), float(ratio))


class Bench:
    """One server under way and the load of both clients."""

    def __init__(self, ready: Setup, arguments: argparse.Namespace, endpoint: Endpoint, folder: Path) -> None:
        self.ready, self.scenario = ready, ready.scenario
        self.arguments, self.endpoint, self.folder = arguments, endpoint, folder
        self.name, self.dataset = next(iter(ready.scenario.datasets.items()))
        self.workload = folder / "workload.jsonl"

    def load(self, point: Point) -> None:
        """Freezes the point's prompts and warms the server up with them."""
        self.point = point
        dataset = msgspec.structs.replace(self.dataset, range_ratio=point.range_ratio)
        context = workload.Context(datasets=self.folder, tokenizer=self.ready.model_path, base=self.folder)
        workload.write(workload.freeze(self.name, dataset, self.arguments.seed, point.requests, context), self.workload)
        self.kit(2 * point.users)

    def kit(self, requests: int) -> tuple[list[RequestRecord], ClientWatch]:
        """One drive of the kit's client on a flushed cache, and its watch of itself; every request must succeed."""
        api.flush(self.endpoint)
        time.sleep(PAUSE_S)
        job = DriveJob(
            host="",
            port=self.scenario.server.port,
            workload=str(self.workload),
            requests=requests,
            concurrency=self.point.users,
        )
        decoder = msgspec.json.Decoder(RequestRecord | DriveEnd)
        lines = [decoder.decode(line) for line in self.endpoint.drive(job)]
        records = [line for line in lines if isinstance(line, RequestRecord)]
        assert all(r.error is None for r in records), next(r.error for r in records if r.error)
        return records, next(line.watch for line in lines if isinstance(line, DriveEnd))

    def sglang(self) -> dict[str, float]:
        """One run of SGLang's own client with the same load."""
        model, output = self.ready.model_path, self.folder / "sglang.jsonl"
        output.unlink(missing_ok=True)
        command = [
            *(self.arguments.sglang, "-m", "sglang.bench_serving", "--backend", "sglang"),
            *("--host", "127.0.0.1", "--port", str(self.scenario.server.port)),
            *("--model", str(model), "--tokenizer", str(model)),
            *("--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", str(self.point.range_ratio)),
            *("--random-input-len", str(self.dataset.input_len), "--random-output-len", str(self.dataset.output_len)),
            *("--num-prompts", str(self.point.requests), "--max-concurrency", str(self.point.users)),
            *("--seed", str(self.arguments.seed), "--flush-cache", "--warmup-requests", "1", "--disable-tqdm"),
            *("--output-file", str(output)),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=self._environment())
        return dict(json.loads(output.read_text().splitlines()[-1]))

    def _environment(self) -> dict[str, str]:
        """The server's, and on the kit's CPU environment a stand-in for what SGLang's client imports and random ids
        do not need."""
        path = self.ready.env.get("PYTHONPATH")
        extra = {"PYTHONPATH": f"{ROOT / 'bench' / 'client' / 'standins'}{os.pathsep}{path}"} if path else {}
        return {**os.environ, **self.ready.env, **extra}


@contextmanager
def serving(arguments: argparse.Namespace) -> Iterator[Bench]:
    """Starts the arm's server and waits until it generates."""
    wanted = scenario.load(scenario.find(arguments.scenario, ROOT / "scenarios"))
    ready = setup.put_together(wanted, setup.folders(ROOT), setup.Choices(no_lock=True), say)
    wanted = ready.scenario
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what = Launch(
            argv=launch.arguments(wanted, arguments.arm, ready.model_path, ready.draft_path, wanted.server.port),
            env={**ready.env, **launch.environment(wanted, arguments.arm)},
            models=[ready.model_path],
            workloads=folder,
            log=folder / "server.log",
            port=wanted.server.port,
            label="crosscheck",
        )
        with ready.engine.serve(what) as endpoint:
            api.wait_until_generates(endpoint, what.log, wanted.server.start_timeout_s)
            yield Bench(ready, arguments, endpoint, folder)


def compare_clients(bench: Bench, rounds: int) -> None:
    """A B A B, and for each figure the ratio with the standard error that the rounds' own ratios give it."""
    turns: dict[str, list[dict[str, float]]] = {"kit": [], "sglang": []}
    for _ in range(rounds):
        turns["kit"].append(_say_turn("kit", _kit_turn(bench)))
        turns["sglang"].append(_say_turn("sglang", bench.sglang()))
    point = bench.point
    print(f"\n{point.users} users, {point.requests} requests a turn, lengths from {point.range_ratio} of the full ones")
    headings = ["figure", "kit", "sglang", "kit / sglang", "standard error", "kit max / min", "sglang max / min"]
    print(tabulate([_row(name, turns) for name in FIGURES], headings, floatfmt=".3f", missingval="n/a"))
    print(
        f"{rounds} rounds; seconds measured: " + ", ".join(f"{who} {_total_s(runs):.0f}" for who, runs in turns.items())
    )


def _kit_turn(bench: Bench) -> dict[str, float]:
    bench.kit(1)  # SGLang's client warms up with one request of its own
    records, watch = bench.kit(bench.point.requests)
    say(f"the kit's client itself: {msgspec.json.encode(watch).decode()}")
    return {"duration": _span_s(records), **{name: take(records) for name, take in FIGURES.items()}}


def _say_turn(who: str, report: dict[str, float]) -> dict[str, float]:
    figures = {name: report[name] for name in ("duration", *FIGURES)}
    say(f"{who}: " + json.dumps({name: round(value, 4) for name, value in figures.items()}))
    return figures


def _row(name: str, turns: dict[str, list[dict[str, float]]]) -> list[str | float | None]:
    kit, sglang = ([run[name] for run in turns[who]] for who in ("kit", "sglang"))
    ratio, error = _mean_ratio([math.log(a / b) for a, b in zip(kit, sglang, strict=True)])
    return [name, _geometric(kit), _geometric(sglang), ratio, error, max(kit) / min(kit), max(sglang) / min(sglang)]


def _total_s(runs: list[dict[str, float]]) -> float:
    return sum(run["duration"] for run in runs)


def sampler_cost(bench: Bench, pairs: int) -> None:
    """Throughput with the sampler on over off, in pairs whose order turns."""
    logs = []
    for pair in range(pairs):
        speed: dict[bool, float] = {}
        for on in (True, False) if pair % 2 else (False, True):
            speed[on] = _speed(bench, bench.ready.indexes if on else [])
        logs.append(math.log(speed[True] / speed[False]))
        say(f"sampler on / off: {speed[True]:.1f} / {speed[False]:.1f} tok/s = {math.exp(logs[-1]):.4f}")
    ratio, error = _mean_ratio(logs)
    spread = "n/a" if error is None else f"{error:.4f}"
    print(f"sampler on over off, {pairs} pairs: ratio {ratio:.4f}, standard error {spread}")


def _mean_ratio(logs: list[float]) -> tuple[float, float | None]:
    """The geometric mean of ratios given as logarithms, and its relative standard error (of one: None)."""
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return math.exp(statistics.mean(logs)), error


def _speed(bench: Bench, indexes: list[int]) -> float:
    with gpu.Sampler(indexes, bench.folder / "gpu.jsonl"):
        records, _ = bench.kit(bench.point.requests)
    return _tokens(records) / _span_s(records)


def _geometric(values: list[float]) -> float:
    return math.exp(statistics.mean(math.log(value) for value in values))


def say(text: str) -> None:
    """Progress goes to standard error, the tables to standard output."""
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> None:
    """Runs both comparisons on one server start."""
    parser = argparse.ArgumentParser(
        prog="bench.crosscheck", description=__doc__.partition("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--scenario", required=True, help="a scenario with a random-ids data set")
    parser.add_argument("--arm", required=True, help="the arm whose server both clients drive")
    parser.add_argument(
        "--point", type=Point.parse, action="append", required=True, metavar="USERS:REQUESTS:RATIO",
        help="a load, may be given several times; ratio 1: all lengths the same",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="seed of the prompts, the same for both clients")
    parser.add_argument("--rounds", type=int, default=8, help="how often both clients take their turn; 0 leaves it out")
    parser.add_argument("--sglang", default=sys.executable, help="a Python that has SGLang's client; default: this one")
    parser.add_argument(
        "--sampler-pairs", type=int, default=0, help="on/off pairs of the GPU sampler at the last point; 0: none"
    )
    arguments = parser.parse_args(argv)
    with serving(arguments) as bench:
        for point in arguments.point:
            bench.load(point)
            if arguments.rounds:
                compare_clients(bench, arguments.rounds)
        if arguments.sampler_pairs:
            sampler_cost(bench, arguments.sampler_pairs)
    print(NOTES)


if __name__ == "__main__":
    main()
