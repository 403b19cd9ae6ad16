"""The process engine with real processes: the fake SGLang of tests/fakes and a client that is a small script."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch, supervisor
from kit.engine.process import ProcessEngine, split_cores
from kit.errors import EngineLost, RunFailed, ServerFailed, UnusableInput
from kit.sglang import api, log

TESTS = Path(__file__).parent.parent
FAKES = str(TESTS / "fakes")
PYTHON = Path(sys.executable)
CLIENT = f"""#!{sys.executable}
import json, os, sys, time
assert sys.argv[1:] == ["-m", "kit.client", "drive"], sys.argv
job = json.loads(sys.stdin.read())
os.environ["KIT_TEST_MARK"] = job["workload"].split()[0]
if "marked" not in os.environ:
    os.environ["marked"] = "1"
    read, write = os.pipe()
    os.write(write, json.dumps(job).encode()); os.close(write); os.dup2(read, 0)
    os.execv(sys.executable, [sys.executable, *sys.argv])
print(json.dumps(job), flush=True)
if "endless" in job["workload"]:
    print("driving", flush=True)
    time.sleep(600)
if "broken" in job["workload"]:
    sys.exit("Traceback of old\\nthe socket burst")
"""


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the environment of everything a test starts; nothing that carries it may be left."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    assert left(word) == []


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def client(tmp_path: Path) -> Path:
    path = tmp_path / "client-python"
    path.write_text(CLIENT)
    path.chmod(0o755)
    return path


def left(mark: str) -> list[int]:
    """Processes that carry the mark, not counting the dead that nobody has collected."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def wait_for_nothing_left(mark: str) -> None:
    deadline = time.monotonic() + 60
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left(mark) == []


def engine(tmp_path: Path, client: Path = PYTHON) -> ProcessEngine:
    return ProcessEngine(PYTHON, client, tmp_path / "state", {"PYTHONPATH": FAKES})


def launch(tmp_path: Path, port: int, mark: str, *flags: str, name: str = "server", **env: str) -> Launch:
    return Launch(
        argv=["-m", "sglang.launch_server", "--port", str(port), *flags],
        env={"KIT_TEST_MARK": mark, **env},
        models=[],
        workloads=tmp_path,
        log=tmp_path / f"{name}.log",
        port=port,
        label="test",
    )


def test_a_server_starts_answers_and_is_gone_afterwards(tmp_path: Path, port: int, mark: str) -> None:
    here, what, seen = engine(tmp_path), launch(tmp_path, port, mark, FAKE_CHILDREN="3"), list[str]()
    facts = here.check(port)
    assert facts["sglang"] == "0.5.17"
    assert facts["python"].startswith("3.")
    with here.serve(what) as endpoint:
        assert api.wait_until_generates(endpoint, what.log, 60, seen.append) > 0
        assert endpoint.exit_code() is None
        assert len(left(mark)) == 4
        read = api.facts(what.log.read_text(), api.server_info(endpoint))
        assert (read.pool_tokens, read.max_running_requests, read.mismatches) == (24094, 2048, [])
        assert api.flush(endpoint).status == 200
        assert list((tmp_path / "state").glob("server-*.json"))
    assert endpoint.exit_code() is not None
    assert left(mark) == []
    assert any("fired up" in line for line in seen)
    assert not list((tmp_path / "state").iterdir())
    here.check(port)


def test_a_speculative_server_says_what_it_costs(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d")
    with engine(tmp_path).serve(what) as endpoint:
        api.wait_until_generates(endpoint, what.log, 60)
        facts = api.facts(what.log.read_text(), api.server_info(endpoint))
    assert [(pool.role, pool.tokens) for pool in facts.pools] == [("target", 9951), ("draft", 9951)]
    assert (facts.max_running_requests, facts.cap_warning, facts.mismatches) == (48, True, [])


@pytest.mark.parametrize("kind", ["out_of_memory", "pool_too_small", "port_in_use", "model_not_found", "no_gpu"])
def test_case_55_a_failed_start_is_classified_with_its_last_lines(
    tmp_path: Path, port: int, mark: str, kind: str
) -> None:
    what = launch(tmp_path, port, mark, FAKE_FAIL=kind, FAKE_CHILDREN="2")
    with engine(tmp_path).serve(what) as endpoint, pytest.raises(ServerFailed) as raised:
        api.wait_until_generates(endpoint, what.log, 60)
    assert raised.value.kind == kind
    assert raised.value.tail
    assert "\n" not in str(raised.value)
    assert "ended with code 1" in str(raised.value)


def test_a_flag_that_the_server_does_not_know(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, "--fake-nonsense", "1")
    with engine(tmp_path).serve(what) as endpoint, pytest.raises(ServerFailed) as raised:
        api.wait_until_generates(endpoint, what.log, 60)
    assert raised.value.kind == "unsupported_flag"
    assert "--fake-nonsense" in " ".join(raised.value.tail)
    assert "unrecognized arguments: --fake-nonsense" in str(raised.value)
    assert str(raised.value).endswith(f"its log: {what.log}")


def test_a_port_that_was_taken_since_the_check_is_refused_before_the_start(tmp_path: Path, port: int) -> None:
    here = engine(tmp_path)
    here.check(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(RunFailed, match=f"port {port} is in use"), here.serve(launch(tmp_path, port, "none")):
            pass
    assert not list(tmp_path.glob("*.log"))


def test_a_server_that_is_not_ours_is_told_by_its_name(tmp_path: Path, port: int, mark: str) -> None:
    slow = launch(tmp_path, port, mark, "--served-model-name", "slow", name="slow", FAKE_START_MS="600000")
    fast = launch(tmp_path, port, mark, "--served-model-name", "fast", name="fast")
    with engine(tmp_path / "a").serve(slow) as ours, engine(tmp_path / "b").serve(fast) as other:
        api.wait_until_generates(ours, slow.log, 60)  # the other one generates, and ours lives
        assert api.own_info(other, "fast", port, fast.log)["served_model_name"] == "fast"
        with pytest.raises(RunFailed, match=f"another server answers on port {port}"):
            api.own_info(ours, "slow", port, slow.log)


def test_case_54_an_open_port_is_not_readiness(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, FAKE_FAIL="never_ready")
    with engine(tmp_path).serve(what) as endpoint:
        while endpoint.call("GET", "/server_info").status != 200:
            time.sleep(0.05)
        with pytest.raises(ServerFailed, match=r"within 0\.5 s.*server\.start_timeout_s") as raised:
            api.wait_until_generates(endpoint, what.log, 0.5)
    assert raised.value.kind == "timed_out"


def test_a_server_that_dies_in_the_middle_is_noticed(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, FAKE_FAIL="exit_after_requests:2", FAKE_CHILDREN="2")
    with engine(tmp_path).serve(what) as endpoint:
        api.wait_until_generates(endpoint, what.log, 60)
        assert endpoint.call("POST", "/generate", b'{"text":"x"}').status == 0
        while endpoint.exit_code() is None:
            time.sleep(0.05)
        assert left(mark) == []  # its children went with it, before anyone left the context
        with pytest.raises(RunFailed, match="ended with code 1"):
            api.flush(endpoint)


def test_an_error_in_the_block_ends_the_server(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, FAKE_CHILDREN="2")
    with pytest.raises(ZeroDivisionError), engine(tmp_path).serve(what) as endpoint:
        api.wait_until_generates(endpoint, what.log, 60)
        raise ZeroDivisionError
    assert left(mark) == []


def test_two_engines_side_by_side(tmp_path: Path, mark: str) -> None:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1], two.getsockname()[1]]
    first, second = (launch(tmp_path, port, mark, name=f"s{port}") for port in ports)
    with engine(tmp_path).serve(first) as a:
        with engine(tmp_path).serve(second) as b:
            api.wait_until_generates(a, first.log, 60)
            api.wait_until_generates(b, second.log, 60)
            assert engine(tmp_path).clean() == []  # what a living runner owns is left alone
        assert a.exit_code() is None
        assert a.call("GET", "/health").status == 200


# ---- before anything is started ---------------------------------------------------------------------------------


def test_a_port_in_use_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((address, 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(UnusableInput, match=rf"port {port} is in use.*--set server\.port={port + 1}"):
                engine(tmp_path).check(port)


def test_a_python_that_is_missing_or_has_no_sglang(tmp_path: Path, port: int) -> None:
    with pytest.raises(UnusableInput, match="python-none: No such file"):
        ProcessEngine(tmp_path / "python-none", PYTHON, tmp_path).check(port)
    with pytest.raises(UnusableInput, match="SGLang is not installed"):
        ProcessEngine(PYTHON, PYTHON, tmp_path, {"PYTHONPATH": ""}).check(port)


def test_server_and_client_have_cores_of_their_own() -> None:
    assert split_cores([0, 1, 2, 5]) == ([0, 1, 2], [5])
    assert split_cores([3]) == ([], [])


# ---- the client -------------------------------------------------------------------------------------------------


def job(port: int, mark: str, words: str = "") -> DriveJob:
    return DriveJob(host="", port=port, workload=f"{mark} {words}", requests=1, concurrency=1)


def test_the_clients_lines_arrive_with_the_job_filled_in(tmp_path: Path, port: int, mark: str, client: Path) -> None:
    here = engine(tmp_path, client)
    with here.serve(launch(tmp_path, port, mark)) as endpoint:
        lines = list(endpoint.drive(job(port, mark)))
    sent = json.loads(lines[0])
    assert (sent["host"], sent["port"], sent["cores"]) == ("127.0.0.1", port, here.client_cores)
    assert len(lines) == 1


def test_a_client_that_fails_is_an_engine_lost_with_its_last_words(
    tmp_path: Path, port: int, mark: str, client: Path
) -> None:
    with engine(tmp_path, client).serve(launch(tmp_path, port, mark)) as endpoint:
        lines = endpoint.drive(job(port, mark, "broken"))
        next(lines)
        with pytest.raises(EngineLost, match="client ended with code 1: the socket burst"):
            list(lines)


def test_a_drive_that_is_given_up_ends_the_client(tmp_path: Path, port: int, mark: str, client: Path) -> None:
    what = launch(tmp_path, port, mark)
    with engine(tmp_path, client).serve(what) as endpoint:
        api.wait_until_generates(endpoint, what.log, 60)  # before that it may not have come up to be counted
        lines = endpoint.drive(job(port, mark, "endless"))
        next(lines)
        next(lines)
        server_and_client = len(left(mark))
        lines.close()  # type: ignore[attr-defined]
        assert (server_and_client, len(left(mark))) == (2, 1)


# ---- when the runner goes ---------------------------------------------------------------------------------------


def start_runner(
    tmp_path: Path, port: int, mark: str, client: Path, driving: str, **env: str
) -> "subprocess.Popen[str]":
    script = str(TESTS / "engine" / "process_runner.py")
    runner = subprocess.Popen(
        [sys.executable, script, FAKES, str(client), str(tmp_path), str(port), mark, driving],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    words = {"drive": "driving", "idle": "ready"}[driving]
    for line in runner.stdout:
        if line.strip() == words:
            break
    return runner


def stop(runner: "subprocess.Popen[str]", number: signal.Signals) -> None:
    runner.send_signal(number)
    runner.wait(60)
    assert runner.stdout is not None
    runner.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("driving", ["idle", "drive"])
def test_nothing_is_left_when_the_runner_goes(
    tmp_path: Path, port: int, mark: str, client: Path, number: signal.Signals, driving: str
) -> None:
    runner = start_runner(tmp_path, port, mark, client, driving)
    assert len(left(mark)) == (5 if driving == "drive" else 4)
    stop(runner, number)
    wait_for_nothing_left(mark)
    assert engine(tmp_path).clean() == []
    assert not list((tmp_path / "state").glob("*.json"))


def test_clean_ends_what_is_left_when_the_supervisor_was_killed_too(
    tmp_path: Path, port: int, mark: str, client: Path
) -> None:
    runner = start_runner(tmp_path, port, mark, client, "idle")
    note = json.loads(next((tmp_path / "state").glob("server-*.json")).read_text())
    os.kill(note["supervisor"][0], signal.SIGSTOP)  # it cannot act any more
    stop(runner, signal.SIGKILL)
    os.kill(note["supervisor"][0], signal.SIGKILL)
    removed = engine(tmp_path).clean()
    assert len(removed) == 1
    assert f"server process {note['child'][0]}" in removed[0]
    strays = left(mark)  # only what had left the server's session before the supervisor was killed
    assert len(strays) <= 1
    for pid in strays:
        os.kill(pid, signal.SIGKILL)
    wait_for_nothing_left(mark)
    assert engine(tmp_path).clean() == []


def test_a_note_of_another_boot_or_of_a_number_used_again_ends_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for boot_id, started in (("another", 0), (boot, 1)):
        note = {"boot_id": boot_id, "child": [bystander.pid, started], "runner": None, "supervisor": None}
        (state / "server-1-1.json").write_text(json.dumps(note))
        assert engine(tmp_path).clean() == []
        assert not list(state.iterdir())
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_proxies_of_the_environment_are_not_used(tmp_path: Path, port: int, mark: str, client: Path) -> None:
    dead = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    runner = start_runner(tmp_path, port, mark, client, "idle", **dead)
    environs = [Path(f"/proc/{pid}/environ").read_bytes() for pid in left(mark)]
    assert environs
    assert not [one for one in environs if b"127.0.0.1:9" in one]
    stop(runner, signal.SIGTERM)
    wait_for_nothing_left(mark)


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    """A server of many threads is a zombie already while one of them still holds the port."""
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", program])
    while Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    found = supervisor.process(server.pid)
    server.kill()
    assert found is not None
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert supervisor.process(server.pid) is None
    server.wait()


# ---- the fake's truth ------------------------------------------------------------------------------------------


def generate(endpoint: Endpoint, text: str, tokens: int) -> dict[str, object]:
    body = json.dumps({"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}).encode()
    meta: dict[str, object] = json.loads(endpoint.call("POST", "/generate", body, 60).body)["meta_info"]
    return meta


def test_the_fake_queues_by_its_pool_and_forgets_on_a_flush(tmp_path: Path, port: int, mark: str) -> None:
    what = launch(tmp_path, port, mark, "--speculative-algorithm", "NGRAM", "--decode-log-interval", "1",
                  FAKE_POOL="100", FAKE_FLUSH_BUSY="1", FAKE_PREFILL_MS="0.5", FAKE_STEP_MS="0.5",
                  FAKE_STEP_MS_PER_REQUEST="0")  # fmt: skip
    with engine(tmp_path).serve(what) as endpoint:
        api.wait_until_generates(endpoint, what.log, 60)
        assert api.flush(endpoint, pause_s=0.01).tries == 2
        with ThreadPoolExecutor(64) as pool:
            metas = list(pool.map(lambda n: generate(endpoint, f"prompt {n}", 28), range(64)))
        assert [meta["completion_tokens"] for meta in metas] == [28] * 64
        assert {meta["spec_verify_ct"] for meta in metas} == {10}  # 1 + floor(10 * 2.7) = 28
        assert generate(endpoint, "prompt 1", 1)["cached_tokens"] == 1
        api.flush(endpoint, pause_s=0.01)
        assert generate(endpoint, "prompt 1", 1)["cached_tokens"] == 0
    counts = log.counts(what.log.read_text(), has_graphs=True)
    assert counts.max_running == 3  # 30 tokens each in a pool of 100
    assert counts.retracted_requests == 0
