"""A fake SGLang server with a known truth, started as the real one is: `python -m sglang.launch_server --flag value …`.

With this folder's parent (tests/fakes) on PYTHONPATH, an ordinary Python runs it. It speaks /generate (streamed and
not), /v1/chat/completions (streamed), /server_info, /flush_cache, /v1/models, /health, and prints the lines of 0.5.17.

The truth, by environment (all times in ms; an arm's `env` table sets them):
  FAKE_PREFILL_MS           time of one prefill, during which nothing decodes        (default 3)
  FAKE_STEP_MS              time of one decode step with one request                 (default 4)
  FAKE_STEP_MS_PER_REQUEST  what each further running request adds to a step         (default 0.05; spec 0.25)
  FAKE_ACCEPT               tokens per verify step of a speculative server, mean     (default 2.7)
  FAKE_POOL                 KV pool in tokens                     (default 24094; with a draft model 9951)
  FAKE_JITTER               share by which a step's time varies, seeded by --random-seed     (default 0)
  FAKE_VERSION              the version that /server_info tells                      (default 0.5.17)
  FAKE_RETRACT_EVERY        retracts one request each N decode steps                 (default 0: never)
  FAKE_FLUSH_BUSY           answers that many flushes with 400                       (default 0)
  FAKE_START_MS             time from the start to an open port                      (default 10)
  FAKE_FAIL                 out_of_memory | pool_too_small | port_in_use | model_not_found | no_gpu | silent |
                            never_ready | exit_after_requests:N
  FAKE_ALGORITHM            the algorithm that it says it runs         (default: the one asked for)
  FAKE_CHILDREN             starts that many idle children, one of them in a session of its own  (default 0)

A request waits while the pool or the running limit is full. A speculative server (--speculative-algorithm) emits
whole verify steps: k or k + 1 tokens so that the mean is FAKE_ACCEPT. Answers depend on the prompt alone, so that all
arms give the same text. A prompt seen since the last flush counts as cached. An unknown `--fake-nonsense` flag is
refused as argparse refuses one.

Tests start dozens of it, so it imports little: threads, one for each connection, instead of asyncio, and rarer things
where they are needed.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from queue import SimpleQueue

GB_PER_TOKEN = 147456 / 2**30


def say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stdout.write(f"[{stamp}] {text}\n")
    sys.stdout.flush()


def number(name: str, default: float) -> float:
    return float(os.environ.get(name, default))


def parse(argv: list[str]) -> dict:
    """`--a-b 1 --c` as {"a_b": 1, "c": True}."""
    args: dict = {}
    position = 0
    while position < len(argv):
        name = argv[position].removeprefix("--").replace("-", "_")
        position += 1
        if position < len(argv) and not argv[position].startswith("--"):
            args[name] = argv[position]
            position += 1
        else:
            args[name] = True
    return args


def dump_experts(place: str) -> None:
    """Writes what the recorder of mode stat writes: a file that `torch.save` made."""
    from pathlib import Path

    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(__file__).parents[2] / "fixtures" / "experts" / "stat.pt"
    (folder / f"expert_distribution_recorder_{time.time()}.pt").write_bytes(made.read_bytes())


def jitter(share: float, seed: int) -> Iterator[float]:
    """Factors of the steps' times."""
    if not share:
        return repeat(1.0)
    import random

    draw = random.Random(seed)
    return (1 + share * draw.uniform(-1, 1) for _ in repeat(None))


class Request:
    """One request in the queue or in the batch; `frames` gets the number of new tokens, 0 at the end."""

    def __init__(self, prompt: str, prompt_tokens: int, output_len: int, ident: str) -> None:
        self.prompt, self.prompt_tokens, self.output_len, self.ident = prompt, prompt_tokens, output_len, ident
        self.begun = time.monotonic()
        self.frames: SimpleQueue[int] = SimpleQueue()
        self.made = self.cached = self.steps = self.retractions = 0

    @property
    def held(self) -> int:
        return self.prompt_tokens + self.output_len


class Server:
    """`lock` guards all that follows it; whoever submits a request wakes the scheduler through it."""

    def __init__(self, args: dict) -> None:
        self.args = args
        self.algorithm = args.get("speculative_algorithm")
        self.speculative = self.algorithm is not None
        draft = "speculative_draft_model_path" in args
        pool = int(number("FAKE_POOL", 9951 if draft else 24094))
        self.pool = min(pool, int(args.get("max_total_tokens", pool)))
        self.asked_running = args.get("max_running_requests")
        self.max_running = int(self.asked_running or (48 if self.speculative else 2048))
        self.graph_max = int(args.get("cuda_graph_max_bs_decode", 64))
        self.interval = int(args.get("decode_log_interval", 40))
        self.accept = number("FAKE_ACCEPT", 2.7)
        self.step_ms = number("FAKE_STEP_MS", 4)
        self.more_ms = number("FAKE_STEP_MS_PER_REQUEST", 0.25 if self.speculative else 0.05)
        self.prefill_ms = number("FAKE_PREFILL_MS", 3)
        self.jitter = jitter(number("FAKE_JITTER", 0), int(args.get("random_seed", 0)))
        self.retract_every = int(number("FAKE_RETRACT_EVERY", 0))
        self.busy_flushes = int(number("FAKE_FLUSH_BUSY", 0))
        self.lock = threading.Condition()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.seen: set[str] = set()
        self.served = 0
        self.steps = 0
        self.window_tokens = 0
        self.total_tokens = self.total_steps = 0

    # ---- what the real one prints ----------------------------------------------------------------------------------

    def print_startup(self) -> None:
        args, draft = self.args, "speculative_draft_model_path" in self.args
        if self.speculative and not self.asked_running:
            say("Max running requests is reset to 48 for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests.")  # fmt: skip
        printed = ", ".join(f"{key}={value!r}" for key, value in self.arguments().items())
        say(f"server_args=ServerArgs({printed})")
        say("Load weight begin. avail mem=21.86 GB")
        say("Load weight end. elapsed=0.01 s, type=Qwen3ForCausalLM, avail mem=6.58 GB, mem usage=15.28 GB.")
        if draft:
            say("Load weight begin. avail mem=6.58 GB")
            say("Load weight end. elapsed=0.00 s, type=LlamaForCausalLMEagle3, avail mem=4.35 GB, mem usage=2.23 GB.")
        for share in (1.0, 1 / 36)[: 2 if draft else 1]:
            half = self.pool * GB_PER_TOKEN / 2 * share
            say(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {self.pool}, "
                f"K size: {half:.2f} GB, V size: {half:.2f} GB")  # fmt: skip
            say("Memory pool end. avail mem=2.00 GB")
        if not args.get("disable_cuda_graph"):
            name = "target verify" if self.speculative else "target decode"
            sizes = [size for size in (1, 2, 4, 8, 16, 24, 32, 48, 64, 128) if size <= self.graph_max]
            say(f"Capture {name} CUDA graph begin. backend=full, num_tokens_per_req=1, bs={sizes}, avail mem=2.00 GB")
            say(f"Capture {name} CUDA graph end. elapsed=0.10 s, mem usage=0.13 GB, avail mem=1.87 GB.")
        say(f"max_total_num_tokens={self.pool}, chunked_prefill_size=2048, max_prefill_tokens=16384, "
            f"max_running_requests={self.max_running}, context_len=40960, available_gpu_mem=1.87 GB")  # fmt: skip

    def print_decode(self, batch: int) -> None:
        spec = f"accept len: {self.accept:.2f}, accept rate: 0.57, " if self.speculative else ""
        held = sum(r.prompt_tokens + r.made for r in self.running)
        say(f"Decode batch, #running-req: {batch}, #token: {held}, token usage: {held / self.pool:.2f}, {spec}"
            f"cuda graph: {batch <= self.graph_max}, gen throughput (token/s): {self.window_tokens:.2f}, "
            f"#queue-req: {len(self.waiting)}")  # fmt: skip

    # ---- the scheduler ---------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        while True:
            with self.lock:
                while not self.waiting and not self.running:
                    self.lock.wait()
            self.admit()
            if self.running:
                self.step()

    def admit(self) -> None:
        while (request := self.next_to_admit()) is not None:
            time.sleep(self.prefill_ms / 1000)
            with self.lock:
                say(f"Prefill batch, #new-seq: 1, #new-token: {request.prompt_tokens - request.cached}, "
                    f"#cached-token: {request.cached}, token usage: {self.used() / self.pool:.2f}, "
                    f"#running-req: {len(self.running)}, #queue-req: {len(self.waiting)}, #pending-token: 0, "
                    f"cuda graph: False, input throughput (token/s): 1000.00")  # fmt: skip
                self.running.append(request)
                if request.made == 0:
                    self.emit(request, 1)

    def next_to_admit(self) -> Request | None:
        with self.lock:
            if not self.waiting or len(self.running) >= self.max_running or not self.fits(self.waiting[0]):
                return None
            request = self.waiting.pop(0)
            request.cached = request.prompt_tokens - 1 if request.prompt in self.seen else 0
            self.seen.add(request.prompt)
            return request

    def fits(self, request: Request) -> bool:
        return self.used() + request.held <= self.pool

    def used(self) -> int:
        return sum(r.held for r in self.running)

    def step(self) -> None:
        batch = list(self.running)
        seconds = (self.step_ms + self.more_ms * (len(batch) - 1)) / 1000
        time.sleep(seconds * next(self.jitter))
        with self.lock:
            self.steps += 1
            for request in batch:
                if request in self.running:  # its client may have gone meanwhile
                    request.steps += 1
                    self.emit(request, self.step_tokens(request))
            if self.steps % self.interval == 0:
                self.print_decode(len(batch))
                self.window_tokens = 0
            if self.retract_every and self.steps % self.retract_every == 0 and len(self.running) > 1:
                self.retract()

    def step_tokens(self, request: Request) -> int:
        """One token, or what brings a speculative request's mean to the accept length."""
        if not self.speculative:
            return 1
        return int(request.steps * self.accept) - int((request.steps - 1) * self.accept)

    def emit(self, request: Request, tokens: int) -> None:
        tokens = min(tokens, request.output_len - request.made)
        request.made += tokens
        self.window_tokens += tokens
        request.frames.put(tokens)
        if request.made >= request.output_len:
            self.running.remove(request)
            self.total_tokens += request.made
            self.total_steps += request.steps
            request.frames.put(0)

    def retract(self) -> None:
        request = self.running.pop()
        request.retractions += 1
        self.waiting.append(request)
        say("KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 10, "
            "#new_token_ratio: 0.50 -> 0.60")  # fmt: skip

    def submit(self, prompt: str, prompt_tokens: int, output_len: int) -> Request:
        with self.lock:
            request = Request(prompt, prompt_tokens, output_len, f"{self.served:032x}")
            self.served += 1
            self.waiting.append(request)
            self.lock.notify()
        fail = os.environ.get("FAKE_FAIL", "")
        if fail.startswith("exit_after_requests:") and self.served >= int(fail.partition(":")[2]):
            say("Scheduler hit an exception: RuntimeError: CUDA error: an illegal memory access was encountered")
            os._exit(1)
        return request

    def drop(self, request: Request) -> None:
        """A client that went away frees its place."""
        with self.lock:
            for queue in (self.waiting, self.running):
                if request in queue:
                    queue.remove(request)

    # ---- what it answers -------------------------------------------------------------------------------------------

    def arguments(self) -> dict:
        args, spec = self.args, self.speculative
        return {
            "model_path": args.get("model_path"),
            "served_model_name": args.get("served_model_name", args.get("model_path")),
            "load_format": args.get("load_format", "auto"),
            "kv_cache_dtype": "auto",
            "device": "cuda",
            "mem_fraction_static": float(args.get("mem_fraction_static", 0.85)),
            "max_running_requests": int(self.asked_running or 48) if spec or self.asked_running else None,
            "max_total_tokens": int(args["max_total_tokens"]) if "max_total_tokens" in args else None,
            "page_size": 1,
            "dp_size": 1,
            "tp_size": 1,
            "random_seed": int(args.get("random_seed", 0)),
            "speculative_algorithm": os.environ.get("FAKE_ALGORITHM", self.algorithm),
            "speculative_num_steps": 3 if spec else None,
            "speculative_num_draft_tokens": 4 if spec else None,
            "decode_log_interval": self.interval,
        }

    def info(self) -> dict:
        state: dict = {"effective_max_running_requests_per_dp": self.max_running}
        if self.speculative and self.total_steps:
            state["avg_spec_accept_length"] = self.total_tokens / self.total_steps
        version = os.environ.get("FAKE_VERSION", "0.5.17")
        return {**self.arguments(), "version": version, "max_total_num_tokens": self.pool, "internal_states": [state]}

    def flush(self) -> tuple[int, bytes]:
        with self.lock:
            if self.busy_flushes > 0 or self.running or self.waiting:
                self.busy_flushes -= 1
                say(f"Cache not flushed because there are pending requests. #queue-req: {len(self.waiting)}, "
                    f"#running-req: {len(self.running)}")  # fmt: skip
                return 400, b"Flush cache failed.\n"
            self.seen.clear()
            self.total_tokens = self.total_steps = 0
            say("Cache flushed successfully!")
            return 200, b"Cache flushed.\n"

    def frame(self, request: Request, made: int, last: bool) -> dict:
        """A cumulative frame of /generate."""
        seed = zlib.crc32(request.prompt.encode()) % 2**16
        ids = [100 + (seed + position) % 900 for position in range(made)]
        meta: dict = {
            "id": request.ident,
            "finish_reason": {"type": "length", "length": request.output_len} if last else None,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": made,
            "cached_tokens": request.cached,
            "num_retractions": request.retractions,
            "weight_version": "default",
            "reasoning_tokens": 0,
        }
        if last:
            meta["e2e_latency"] = time.monotonic() - request.begun
        if last and self.speculative and request.steps:
            proposed = 3 * request.steps
            correct = min(proposed, max(0, request.made - 1 - request.steps))
            meta |= {
                "spec_verify_ct": request.steps,
                "spec_accept_length": request.made / request.steps,
                "spec_accept_rate": correct / proposed,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": proposed,
            }
        return {"text": "".join(f" w{i}" for i in ids), "output_ids": ids, "meta_info": meta}


class Connection:
    """One HTTP/1.1 connection, kept alive."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server, self.sock = server, sock
        self.reader = sock.makefile("rb")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def talk(self) -> None:
        with self.sock, self.reader, suppress(ConnectionError):
            while self.one():
                pass

    def one(self) -> bool:
        """Answers one request; whether another may follow."""
        head = []
        while (line := self.reader.readline()) != b"\r\n":
            if not line:
                return False
            head.append(line.decode("latin-1").strip())
        method, target, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = self.reader.read(int(headers.get("content-length", "0") or 0))
        self.answer(method, target.partition("?")[0], body)
        return headers.get("connection", "").lower() != "close"

    def answer(self, method: str, path: str, body: bytes) -> None:
        server = self.server
        if path in ("/server_info", "/get_server_info"):
            self.reply(200, json.dumps(server.info()).encode())
        elif path == "/flush_cache":
            self.reply(*server.flush())
        elif path.endswith("_expert_distribution_record") and "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR" in os.environ:
            if path.startswith("/dump"):
                dump_experts(os.environ["SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"])
            self.reply(200, b"")
        elif path in ("/health", "/health_generate", "/v1/models", "/model_info"):
            self.reply(200, b"{}")
        elif path in ("/generate", "/v1/chat/completions") and method == "POST":
            self.generate(json.loads(body), path == "/generate")
        else:
            self.reply(404, b'{"detail":"Not Found"}')

    def generate(self, asked: dict, native: bool) -> None:
        if os.environ.get("FAKE_FAIL") == "never_ready":
            self.reply(503, b'{"error":"not ready"}')
            return
        if native:
            prompt = asked.get("text") if asked.get("text") is not None else json.dumps(asked.get("input_ids"))
            tokens = len(asked["input_ids"]) if asked.get("input_ids") else max(1, len(str(prompt).split()))
            length = int(asked.get("sampling_params", {}).get("max_new_tokens", 128))
        else:
            prompt = " ".join(str(message.get("content")) for message in asked["messages"])
            tokens, length = max(1, len(prompt.split())), int(asked.get("max_tokens", 128))
        if tokens + length > self.server.pool:
            self.reply(400, b'{"error":{"message":"The input is longer than the pool allows"}}')
            return
        request = self.server.submit(str(prompt), tokens, length)
        try:
            if native and not asked.get("stream"):
                while request.frames.get():
                    pass
                self.reply(200, json.dumps(self.server.frame(request, request.made, True)).encode())
            else:
                self.stream(request, native)
        except ConnectionError:
            self.server.drop(request)
            raise

    def stream(self, request: Request, native: bool) -> None:
        self.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                          b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
        if not native:
            self.event(self.chat(request, 0, 0, role="assistant"))
        made = 0
        while new := request.frames.get():
            made += new
            last = made >= request.output_len
            self.event(self.server.frame(request, made, last) if native else self.chat(request, made, new))
        if not native:
            usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": made,
                     "total_tokens": request.prompt_tokens + made,
                     "prompt_tokens_details": {"cached_tokens": request.cached}}  # fmt: skip
            self.event({"id": request.ident, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.sock.sendall(b"0\r\n\r\n")

    def chat(self, request: Request, made: int, new: int, role: str | None = None) -> dict:
        whole = self.server.frame(request, made, False)["text"]
        text = "" if role else whole[len(self.server.frame(request, made - new, False)["text"]) :]
        delta = {"role": role, "content": ""} if role else {"content": text}
        reason = "length" if made >= request.output_len else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": made,
                 "total_tokens": request.prompt_tokens + made}  # fmt: skip
        return {"id": request.ident, "object": "chat.completion.chunk", "choices": [choice], "usage": usage}

    def event(self, record: dict) -> None:
        self.chunk(b"data: " + json.dumps(record, separators=(",", ":")).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def reply(self, status: int, body: bytes) -> None:
        self.sock.sendall(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                          % (status, len(body), body))  # fmt: skip


FAILURES = {
    "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total "
    "capacity of 22.03 GiB of which 900.00 MiB is free.",
    "pool_too_small": "RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
    "--mem-fraction-static=0.7. Raise --mem-fraction-static above 0.78. If using speculative decoding, draft weights "
    "are now counted.",
    "port_in_use": "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
    "address already in use",
    "model_not_found": "OSError: models/none is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'",
    "no_gpu": "RuntimeError: No CUDA GPUs are available",
    "silent": "",
}


def children(count: int) -> None:
    """Idle processes as the real one has them; the first moves to a session of its own."""
    import subprocess

    for index in range(count):
        subprocess.Popen(["sleep", "600"], start_new_session=index == 0)


def accept(listener: socket.socket, server: Server) -> None:
    while True:
        connection = Connection(server, listener.accept()[0])
        threading.Thread(target=connection.talk, daemon=True).start()


def serve(args: dict) -> None:
    server = Server(args)
    server.print_startup()
    time.sleep(number("FAKE_START_MS", 10) / 1000)
    listener = socket.create_server((args.get("host", "127.0.0.1"), int(args["port"])), backlog=512)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    threading.Thread(target=server.schedule, daemon=True).start()
    threading.Thread(target=accept, args=(listener, server), daemon=True).start()
    say(f"INFO:     Uvicorn running on http://127.0.0.1:{args['port']} (Press CTRL+C to quit)")
    if os.environ.get("FAKE_FAIL") != "never_ready":
        say("The server is fired up and ready to roll!")
    stopped.wait()
    say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    os._exit(0)  # its threads need no farewell


def main() -> int:
    args = parse(sys.argv[1:])
    if "fake_nonsense" in args:
        sys.stderr.write(
            "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --fake-nonsense\n"
        )
        return 2
    children(int(number("FAKE_CHILDREN", 0)))
    fail = os.environ.get("FAKE_FAIL", "")
    if fail in FAILURES:
        say("Load weight begin. avail mem=21.86 GB")
        sys.stderr.write(
            f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n{FAILURES[fail]}\n'
        )
        return 1
    serve(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
