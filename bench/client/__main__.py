"""Compares load clients on this machine: `python -m bench.client [--users 8,64] [--sglang PYTHON] ...`.

Each client runs on one core, the truth server on the other. Errors are reported minus true, in ms, of the quantile
named; every figure is the median over the repeats. Knows nothing of the kit's inside: it runs the client as a program.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.client import truth

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SERVER_ARGUMENTS = ["--stall-share", "0.02", "--seed", "1", "--model", "truth"]
QUANTILES = (50, 99)


class Load:
    """What one run asks of a client."""

    def __init__(self, port, users, requests, tokens, folder):
        self.port, self.users, self.requests, self.tokens, self.folder = port, users, requests, tokens, folder


class Client:
    """One client to compare: how it is run, and its report in this bench's words (ms, tokens/s)."""

    name = ""
    environment: dict[str, str] = {}

    def command(self, load):
        """The command line."""
        raise NotImplementedError

    def stdin(self, load):
        """What it is told on its standard input."""
        return b""

    def report(self, output, load):
        """Figures from its output."""
        raise NotImplementedError


class KitClient(Client):
    """The client under test, as the kit runs it."""

    name = "kit"
    environment = {"PYTHONPATH": str(ROOT)}

    def command(self, load):
        """The kit's command line."""
        return [sys.executable, "-m", "kit.client", "drive"]

    def stdin(self, load):
        """The job; its workload is written first."""
        workload = load.folder / "workload.jsonl"
        lines = ({"index": n, "output_len": load.tokens, "text": "a b c " * 20} for n in range(load.requests))
        workload.write_text("".join(json.dumps(line) + "\n" for line in lines))
        job = {"host": "127.0.0.1", "port": load.port, "workload": str(workload), "requests": load.requests}
        return json.dumps({**job, "concurrency": load.users}).encode()

    def report(self, output, load):
        """Times from the records, in ms."""
        lines = [json.loads(line) for line in output.splitlines()]
        good = [line for line in lines if line["type"] == "request" and not line["error"]]
        if len(good) < load.requests:
            errors = [line["error"] for line in lines[:-1] if line["error"]]
            raise SystemExit(f"kit: {len(good)} of {load.requests} requests are good: {errors[:1]} {lines[-1]}")
        spans = [(line["sent_s"], [at for at, _ in line["chunks"]], line["completion_tokens"]) for line in good]
        watch = lines[-1]["watch"]
        return {**_figures(spans), "completed": len(good), "lag_p99": watch["lag_p99_s"] * 1e3}


class BareReader(Client):
    """A uvloop protocol that only stamps."""

    name = "bare uvloop"

    def command(self, load):
        """The reader's command line."""
        numbers = (load.port, load.users, load.requests, load.tokens)
        return [sys.executable, str(HERE / "bare_reader.py"), *map(str, numbers)]

    def report(self, output, load):
        """Times from its stamps, in ms; it knows the tokens that were asked for, not the ones that came."""
        spans = [(sent, stamps, load.tokens) for sent, stamps in json.loads(output)]
        return {**_figures(spans), "completed": len(spans)}


class Floor(Client):
    """A C reader that only counts; it reports no times."""

    name = "C floor"

    def command(self, load):
        """The reader's command line."""
        numbers = (load.port, load.users, load.requests, load.tokens)
        return [str(load.folder.parent / "floor_client"), *map(str, numbers)]

    def report(self, output, load):
        """How many requests it finished."""
        return {"completed": json.loads(output)["completed"]}


class SglangClient(Client):
    """SGLang's own client, where a Python that has it was named."""

    name = "sglang"

    def __init__(self, python, environment, tokenizer):
        self.python, self.environment, self.tokenizer = python, environment, tokenizer

    def command(self, load):
        """bench_serving against /generate with prompts of 64 ids, greedy, no warm-up."""
        flags = {
            "backend": "sglang", "host": "127.0.0.1", "port": load.port, "model": "truth", "tokenizer": self.tokenizer,
            "dataset-name": "random-ids", "random-input-len": 64, "random-output-len": load.tokens,
            "random-range-ratio": 1.0, "num-prompts": load.requests, "max-concurrency": load.users,
            "warmup-requests": 0, "seed": 1, "output-file": load.folder / "sglang.jsonl",
        }  # fmt: skip
        arguments = [text for key, value in flags.items() for text in (f"--{key}", str(value))]
        return [str(self.python), "-m", "sglang.bench_serving", *arguments, "--disable-tqdm"]

    def report(self, output, load):
        """Its own summary, in ms; it prints no chunk gap."""
        row = json.loads((load.folder / "sglang.jsonl").read_text().splitlines()[-1])
        pick = {name: {"p50": row[f"median_{name}_ms"], "p99": row[f"p99_{name}_ms"]} for name in ("ttft", "tpot")}
        return {**pick, "throughput": row["output_throughput"], "completed": row["completed"]}


def _figures(spans):
    """TTFT, gap and TPOT quantiles in ms and the throughput of (sent, stamps, tokens) spans in seconds."""
    ttft = [(stamps[0] - sent) * 1e3 for sent, stamps, _ in spans]
    gap = [(b - a) * 1e3 for _, stamps, _ in spans for a, b in zip(stamps, stamps[1:], strict=False)]
    tpot = [(stamps[-1] - stamps[0]) * 1e3 / (tokens - 1) for _, stamps, tokens in spans if tokens > 1]
    wall_s = max(stamps[-1] for _, stamps, _ in spans) - min(sent for sent, _, _ in spans)
    throughput = sum(tokens for _, _, tokens in spans) / wall_s
    return {"ttft": _spread(ttft), "gap": _spread(gap), "tpot": _spread(tpot), "throughput": throughput}


def _spread(values):
    ordered = sorted(values)
    return {f"p{q}": truth.quantile(ordered, q) for q in QUANTILES}


# ---- one run --------------------------------------------------------------------------------------------------------


def run_once(client, users, arguments, folder):
    """Runs one client against a fresh truth server; returns the row of figures."""
    requests = max(arguments.requests_per_user * users, arguments.min_requests)
    place = Path(tempfile.mkdtemp(dir=folder))
    load = Load(_free_port(), users, requests, arguments.tokens, place)
    log = place / "truth.bin"
    server = _pinned([str(folder / "truth_server"), "--port", str(load.port), "--log", str(log), *SERVER_ARGUMENTS],
                     arguments.server_core, stderr=subprocess.PIPE)  # fmt: skip
    try:
        if b"ready" not in (said := server.stderr.readline()):
            raise SystemExit(f"truth server: {said.decode().strip()}")
        output, samples, foreign = _watched(client, load, arguments.client_core, server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
    row = _row(client.report(output, load), truth.summarise(log, requests, users), samples)
    shutil.rmtree(place)
    return {"client": client.name, "users": users, "requests": requests, "foreign": foreign, **row}


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _pinned(command, core, **pipes):
    return subprocess.Popen(["taskset", "-c", str(core), *command], **pipes)


def _watched(client, load, core, server_pid):
    """Output, (monotonic, CPU s, MiB) samples of the client, and the cores that others used meanwhile."""
    busy_s, started_s, server_s = _busy_s(), time.monotonic(), _cpu_s(server_pid)
    with (load.folder / "stderr").open("wb") as errors:
        process = _pinned(client.command(load), core, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                          env={**os.environ, **client.environment})  # fmt: skip
    samples, over = [], threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, samples, over))
    sampler.start()
    output, _ = process.communicate(client.stdin(load))
    over.set()
    sampler.join()
    wall_s = time.monotonic() - started_s
    if process.returncode:
        raise SystemExit(f"{client.name}: exit {process.returncode}: {(load.folder / 'stderr').read_text()[-2000:]}")
    own_s = samples[-1][1] + _cpu_s(server_pid) - server_s
    return output, samples, max((_busy_s() - busy_s - own_s) / wall_s, 0.0)


def _sample(pid, samples, over):
    while not over.wait(0.05):
        seconds = _tree_cpu_s(pid)
        if seconds:
            samples.append((time.monotonic(), seconds, _rss_mib(pid)))


def _tree_cpu_s(root):
    """CPU seconds of a process and its children, so that a client of several processes pays for all of them."""
    children = [root]
    for pid in children:
        try:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            continue
        children += map(int, listed.split())
    return sum(_cpu_s(pid) for pid in children)


def _cpu_s(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def _rss_mib(pid):
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _busy_s():
    with Path("/proc/stat").open() as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


def _row(reported, true, samples):
    row = {}
    for metric in ("ttft", "gap", "tpot"):
        for q in (f"p{q}" for q in QUANTILES):
            value = reported.get(metric, {}).get(q)
            row[f"{metric} {q}"] = None if value is None else value - true[metric][q]
    throughput = reported.get("throughput")
    row["throughput %"] = None if throughput is None else 100 * (throughput / true["throughput"] - 1)
    row["slots %"] = 100 * true["slots"] if "slots" in true else None
    row["chunks/s"] = true.get("steady_chunk_rate", true["chunk_rate"])
    cpu_s = _at(samples, true["t_last"] + 0.1) - _at(samples, true["t_first"])
    row["CPU s/M"] = cpu_s / true["chunks"] * 1e6
    steady = [mib for at, _, mib in samples if true["t_first"] + 1.0 <= at <= true["t_last"]]
    row["MiB"] = max(steady, default=None)
    row["MiB grown"] = steady[-1] - steady[0] if steady else None
    row["own lag p99"] = reported.get("lag_p99")
    row["server lag p99"] = true["lag"]["p99"]
    return row


def _at(samples, when):
    """CPU seconds at one moment, between two samples in proportion."""
    before = max((sample for sample in samples if sample[0] <= when), default=samples[0])
    after = min((sample for sample in samples if sample[0] >= when), default=samples[-1])
    if after[0] <= before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (when - before[0]) / (after[0] - before[0])


# ---- the table ------------------------------------------------------------------------------------------------------

COLUMNS = ("ttft p50", "ttft p99", "gap p50", "gap p99", "tpot p50", "tpot p99", "throughput %", "slots %", "chunks/s",
           "CPU s/M", "MiB", "MiB grown", "own lag p99", "server lag p99", "foreign")  # fmt: skip
DIGITS = {"chunks/s": 0, "slots %": 2, "CPU s/M": 1}


def table(rows):
    """Median of each figure over the repeats, one line for each number of users and client."""
    from tabulate import tabulate

    keys = list(dict.fromkeys((row["users"], row["client"]) for row in rows))
    lines = []
    for users, client in keys:
        same = [row for row in rows if (row["users"], row["client"]) == (users, client)]
        lines.append([users, client, len(same), *(_median(same, column) for column in COLUMNS)])
    return tabulate(lines, headers=["users", "client", "runs", *COLUMNS], disable_numparse=True, stralign="right")


def _median(rows, column):
    values = [row[column] for row in rows if row[column] is not None]
    return f"{statistics.median(values):.{DIGITS.get(column, 2)}f}" if values else "n/a"


def main(argv=None):
    """Compiles the two C programs, runs every client at every number of users, prints the table."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory(prefix="bench-client-") as name:
        folder = Path(name)
        for program in ("truth_server", "floor_client"):
            subprocess.run(["cc", "-O2", "-w", "-o", folder / program, HERE / f"{program}.c"], check=True)
        rows = _all_runs(_clients(arguments, folder), arguments, folder)
    sys.stdout.write(f"\nerrors in ms (reported minus true); medians of {arguments.repeats}\n{table(rows)}\n")


def _clients(arguments, folder):
    clients = [KitClient(), BareReader(), Floor()]
    python, environment = _sglang(arguments.sglang)
    if python:
        tokenizer = folder / "tokenizer"
        subprocess.run([python, str(HERE / "mktok.py"), str(tokenizer)], check=True)
        clients.append(SglangClient(python, {"HF_HUB_OFFLINE": "1", **environment}, tokenizer))
    return [client for client in clients if not arguments.only or client.name in arguments.only]


def _sglang(given):
    """A Python that has sglang and its environment: the one given, else the kit's own CPU server's, if it is made."""
    from kit.rehearsal import ensure_environment
    from kit.rehearsal.environment import MARKER, environment_key

    cache = ROOT / ".cache" / "cpu-sglang"
    if given:
        return given, {}
    if not (cache / environment_key() / MARKER).exists():
        sys.stdout.write("SGLang's own client is left out: no --sglang, and the kit's CPU server is not made yet\n")
        return None, {}
    server = ensure_environment(cache, lambda _: None)
    return server.python, {**server.env, "PYTHONPATH": f"{HERE / 'standins'}{os.pathsep}{server.env['PYTHONPATH']}"}


def _all_runs(clients, arguments, folder):
    rows = []
    for users in arguments.users:
        for repeat in range(arguments.repeats):
            for client in clients:
                row = run_once(client, users, arguments, folder)
                rows.append(row)
                sys.stdout.write(f"{client.name} {users} users, run {repeat + 1}: {json.dumps(row)}\n")
                sys.stdout.flush()
    return rows


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="bench-client", description=__doc__)
    parser.add_argument("--users", type=_numbers, default=[8, 64, 256, 1024], help="default 8,64,256,1024")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests-per-user", type=int, default=4)
    parser.add_argument("--min-requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each request")
    parser.add_argument("--sglang", type=Path, help="a Python that has sglang; else the kit's CPU server's")
    parser.add_argument("--only", type=lambda text: text.split(","), help="kit, bare uvloop, C floor, sglang")
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=1)
    return parser.parse_args(argv)


def _numbers(text):
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
