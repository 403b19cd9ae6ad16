"""On one running server: SGLang's own client beside the kit's, in turn, and the GPU sampler on beside off.

`python -m bench.crosscheck --scenario h200-break-even --arm accept-3 --users 16 --requests 480`

A B A B: the kit, SGLang, the kit, SGLang, each on a flushed cache with the same lengths, seed and concurrency.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
from tabulate import tabulate

from kit import gpu, scenario, setup
from kit.analysis import metrics
from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch
from kit.measurements import DriveEnd, RequestRecord
from kit.sglang import api, launch

ROOT = Path(__file__).resolve().parent.parent
FIGURES = {  # SGLang's name -> how it is taken from the kit's records, in SGLang's own definition
    "output_throughput": lambda r: _tokens(r) / _span_s(r),
    "mean_ttft_ms": lambda r: _mean(r, "ttft_text_p50_ms"),
    "median_ttft_ms": lambda r: _quantile(r, "ttft_text_p50_ms", 0.5),
    "p99_ttft_ms": lambda r: _quantile(r, "ttft_text_p50_ms", 0.99),
    "mean_tpot_ms": lambda r: _mean(r, "tpot_sglang_mean_ms"),
    "mean_itl_ms": lambda r: _mean(r, "itl_sglang_p50_ms"),
    "median_itl_ms": lambda r: _quantile(r, "itl_sglang_p50_ms", 0.5),
    "p99_itl_ms": lambda r: _quantile(r, "itl_sglang_p99_ms", 0.99),
}
NOTES = """SGLang's duration runs from before its first request to after its last, plus a call of /server_info, so
its throughput is lower by that; TTFT is the first chunk with text in both; ITL divides each gap by its chunk's tokens
in both."""


def _values(records: list[RequestRecord], tag: str) -> list[float]:
    metric = metrics.BY_TAG[tag]
    assert metric.request is not None
    return [v * metric.scale for r in records for v in metric.request(r)]


def _mean(records: list[RequestRecord], tag: str) -> float:
    return float(np.mean(_values(records, tag)))


def _quantile(records: list[RequestRecord], tag: str, q: float) -> float:
    return float(np.quantile(_values(records, tag), q))


def _tokens(records: list[RequestRecord]) -> int:
    return sum(r.completion_tokens or 0 for r in records)


def _span_s(records: list[RequestRecord]) -> float:
    return max(r.chunks[-1][0] for r in records) - min(r.sent_s or 0.0 for r in records)


class Bench:
    """One server under way and the load of both clients."""

    def __init__(self, ready: setup.Setup, arguments: argparse.Namespace, endpoint: Endpoint, folder: Path) -> None:
        self.scenario, self.env = ready.scenario, ready.env
        self.arguments, self.endpoint, self.folder = arguments, endpoint, folder
        self.dataset = next(iter(ready.scenario.datasets.values()))
        self.workload = folder / "workload.jsonl"

    def kit(self, requests: int) -> list[RequestRecord]:
        """One measured drive of the kit's client; every request must succeed."""
        api.flush(self.endpoint)
        job = DriveJob(
            host="",
            port=self.scenario.server.port,
            workload=str(self.workload),
            requests=requests,
            concurrency=self.arguments.users,
        )
        decoder = msgspec.json.Decoder(RequestRecord | DriveEnd)
        lines = [decoder.decode(line) for line in self.endpoint.drive(job)]
        records = [line for line in lines if isinstance(line, RequestRecord)]
        assert all(r.error is None for r in records), next(r.error for r in records if r.error)
        return records

    def sglang(self, model: Path) -> dict[str, float]:
        """One run of SGLang's own client with the same load."""
        output = self.folder / "sglang.jsonl"
        output.unlink(missing_ok=True)
        command = [
            *(self.arguments.sglang, "-m", "sglang.bench_serving", "--backend", "sglang"),
            *("--host", "127.0.0.1", "--port", str(self.scenario.server.port)),
            *("--model", str(model), "--tokenizer", str(model)),
            *("--dataset-name", "random-ids", "--random-range-ratio", "1.0"),
            *("--random-input-len", str(self.dataset.input_len), "--random-output-len", str(self.dataset.output_len)),
            *("--num-prompts", str(self.arguments.requests), "--max-concurrency", str(self.arguments.users)),
            *("--seed", str(self.arguments.seed), "--flush-cache", "--warmup-requests", "1", "--disable-tqdm"),
            *("--output-file", str(output)),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=self._environment())
        return dict(json.loads(output.read_text().splitlines()[-1]))

    def _environment(self) -> dict[str, str]:
        """The server's, and on the kit's CPU environment a stand-in for what SGLang's client imports and random ids
        do not need."""
        path = self.env.get("PYTHONPATH")
        extra = {"PYTHONPATH": f"{ROOT / 'bench' / 'client' / 'standins'}{os.pathsep}{path}"} if path else {}
        return {**os.environ, **self.env, **extra}


@contextmanager
def serving(arguments: argparse.Namespace) -> Iterator[tuple[Bench, setup.Setup]]:
    """Starts the arm's server, freezes the workload and warms both up."""
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
        ready.freeze(next(iter(wanted.datasets)), arguments.seed, arguments.requests, folder / "workload.jsonl")
        with ready.engine.serve(what) as endpoint:
            api.wait_until_generates(endpoint, what.log, wanted.server.start_timeout_s)
            bench = Bench(ready, arguments, endpoint, folder)
            bench.kit(2 * arguments.users)
            yield bench, ready


def compare_clients(bench: Bench, model: Path, rounds: int) -> None:
    """A B A B and the ratio of the geometric means, figure by figure."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(rounds):
        records = bench.kit(bench.arguments.requests)
        ours.append({name: take(records) for name, take in FIGURES.items()})
        say(f"kit: {ours[-1]['output_throughput']:.1f} tok/s over {_span_s(records):.1f} s")
        report = bench.sglang(model)
        theirs.append({name: report[name] for name in FIGURES})
        say(f"sglang: {theirs[-1]['output_throughput']:.1f} tok/s over {report['duration']:.1f} s")
    rows = [
        [name, *(v for pair in zip(ours, theirs, strict=True) for v in (pair[0][name], pair[1][name])),
         _geometric(ours, name) / _geometric(theirs, name)]
        for name in FIGURES
    ]  # fmt: skip
    headings = ["figure", *(f"{who} {n + 1}" for n in range(rounds) for who in ("kit", "sglang")), "kit / sglang"]
    print(tabulate(rows, headings, floatfmt=".3f"))
    print(NOTES)


def sampler_cost(bench: Bench, indexes: list[int], pairs: int) -> None:
    """Throughput with the sampler on over off, in pairs whose order turns."""
    logs = []
    for pair in range(pairs):
        speed: dict[bool, float] = {}
        for on in (True, False) if pair % 2 else (False, True):
            speed[on] = _speed(bench, indexes if on else [])
        logs.append(math.log(speed[True] / speed[False]))
        say(f"sampler on / off: {speed[True]:.1f} / {speed[False]:.1f} tok/s = {math.exp(logs[-1]):.4f}")
    mean, spread = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(pairs) if pairs > 1 else math.nan
    print(f"sampler on over off, {pairs} pairs: ratio {math.exp(mean):.4f}, standard error {spread:.4f}")


def _speed(bench: Bench, indexes: list[int]) -> float:
    with gpu.Sampler(indexes, bench.folder / "gpu.jsonl"):
        records = bench.kit(max(bench.arguments.requests // 4, bench.arguments.users))
    return _tokens(records) / _span_s(records)


def _geometric(runs: list[dict[str, float]], name: str) -> float:
    return math.exp(statistics.mean(math.log(run[name]) for run in runs))


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
    parser.add_argument("--users", type=int, default=16, help="requests kept in flight")
    parser.add_argument("--requests", type=int, default=480, help="requests of each run; take enough for 30 s")
    parser.add_argument("--seed", type=int, default=1, help="seed of the prompts, the same for both clients")
    parser.add_argument("--rounds", type=int, default=2, help="how often both clients take their turn; 0 leaves it out")
    parser.add_argument("--sglang", default=sys.executable, help="a Python that has SGLang's client; default: this one")
    parser.add_argument("--sampler-pairs", type=int, default=0, help="on/off pairs of the GPU sampler; 0 leaves it out")
    arguments = parser.parse_args(argv)
    with serving(arguments) as (bench, ready):
        if arguments.sampler_pairs:
            sampler_cost(bench, ready.indexes, arguments.sampler_pairs)
        if arguments.rounds:
            compare_clients(bench, ready.model_path, arguments.rounds)


if __name__ == "__main__":
    main()
