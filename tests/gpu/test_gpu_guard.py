"""The clock lock: held by a guard process, reset however run or guard end. The stand-in's file outlives them all."""

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin import Standin, wait_until

from kit import gpu_guard


def marker(**changes: object) -> str:
    """What a guard that was killed leaves behind."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    left = {
        "uuid": "GPU-standin-0",
        "index": 0,
        "boot_id": boot,
        "guard_pid": 2**22,
        "guard_start_ticks": 1,
        "mhz": 900,
    }
    return json.dumps(left | changes)


class Machine(NamedTuple):
    """A machine on which one command is run: its keys, the marker that was left, the command's words."""

    keys: dict[str, int]
    command: str
    left: str | None = None


MACHINES = {
    "another boot": Machine({}, "stale", marker(boot_id="another")),
    "a reused process id": Machine({"card0_lock": 900}, "stale", marker(guard_pid=os.getpid(), guard_start_ticks=1)),
    "not visible": Machine({}, "stale", marker(uuid="GPU-elsewhere")),
    "a reset refused": Machine({"card0_lock": 900, "card0_stuck": 1}, "stale", marker()),
    "a damaged marker": Machine({}, "stale", "{"),
    "no permission, preferred": Machine({"card0_permission": 0}, "hold-briefly preferred"),
    "not lockable, preferred": Machine({"card0_lockable": 0}, "hold-briefly preferred"),
    "a lost card, preferred": Machine({"card0_fail": 15}, "hold-briefly preferred"),
    "no driver, preferred": Machine({"init": 9}, "hold-briefly preferred"),
    "no permission, required": Machine({"card0_permission": 0}, "hold-briefly required"),
    "not lockable, required": Machine({"card0_lockable": 0}, "hold-briefly required"),
    "one card of two refuses": Machine({"count": 2, "card1_permission": 0}, "hold-briefly required 900 0,1"),
    "--no-lock": Machine({}, "hold-off required"),
    "off": Machine({}, "hold-briefly off"),
}
Said = dict[str, tuple[Any, Standin]]


@pytest.fixture(scope="module")
def said(libraries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What each of MACHINES answered, and it afterwards. One process asks them all: most of its time is the start."""
    home = tmp_path_factory.mktemp("machines")
    machines, orders = {}, []
    for name, (keys, command, left) in MACHINES.items():
        machines[name] = Standin(home / name, libraries["new"])
        machines[name].set(**keys)
        if left is not None:
            machines[name].state.mkdir()
            (machines[name].state / "lock-x.json").write_text(left)
        verb, *words = command.split()
        orders.append((machines[name], [verb, str(machines[name].state), *words]))
    answers = orders[0][0].ask_each(*orders)
    return {name: (answer, machines[name]) for name, answer in zip(MACHINES, answers, strict=True)}


def test_the_lock_is_held_and_reset(standin: Standin) -> None:
    process, answer = standin.hold("required", "907")
    record = answer["record"]
    assert (record["state"], record["asked"], record["asked_mhz"], record["set_mhz"]) == (
        "locked",
        "required",
        907,
        900,
    )
    assert "an earlier lock by someone else cannot be read" in record["detail"]
    assert standin.locked() == 900
    assert standin.marker()["uuid"] == "GPU-standin-0"
    process.communicate("\n", timeout=60)
    assert standin.locked() == 0
    assert standin.read()["0.resets"] == "1"
    assert list(standin.state.iterdir()) == []


def test_two_cards_are_locked_and_reset(standin: Standin) -> None:
    standin.set(count=3)
    process, _ = standin.hold("required", "900", "0,2")
    assert [standin.locked(card) for card in range(3)] == [900, 0, 900]
    process.communicate("\n", timeout=60)
    assert [standin.locked(card) for card in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("verb", ["hold", "hold-fork"])
def test_case_69_kill_9_of_the_runner_resets(standin: Standin, verb: str) -> None:
    process = standin.start(verb, str(standin.state), "required", "900")
    assert process.stdout is not None
    child = json.loads(process.stdout.readline())["child"]
    assert standin.locked() == 900
    process.kill()
    process.wait()
    wait_until(lambda: standin.locked() == 0, "the guard resets after kill -9 of the runner")
    wait_until(lambda: not list(standin.state.iterdir()), "the guard removes its marker")
    if child:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_case_69_a_signal_to_the_guard_resets(standin: Standin, number: signal.Signals) -> None:
    process, _ = standin.hold("required")
    os.kill(standin.marker()["guard_pid"], number)
    wait_until(lambda: standin.locked() == 0, f"the guard resets on {number.name}")
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_case_69_kill_9_of_the_guard_then_unlock_resets(standin: Standin) -> None:
    process, _ = standin.hold("required")
    os.kill(standin.marker()["guard_pid"], signal.SIGKILL)
    process.kill()
    process.wait()
    assert standin.locked() == 900
    lines = wait_for_stale(standin)
    assert lines == ["card 0 (GPU-standin-0): reset the clock that a killed run left locked at 900 MHz"]
    assert standin.locked() == 0
    assert standin.ask("stale", str(standin.state)) == []


def test_a_killed_guard_that_its_run_has_not_noticed_is_dead(standin: Standin) -> None:
    process, _ = standin.hold("required")
    os.kill(standin.marker()["guard_pid"], signal.SIGKILL)
    wait_for_stale(standin)
    assert standin.locked() == 0
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def wait_for_stale(standin: Standin) -> list[str]:
    lines: list[str] = []

    def done() -> bool:
        lines.extend(standin.ask("stale", str(standin.state)))
        return bool(lines)

    wait_until(done, "a stale marker")
    return lines


def test_a_run_resets_itself_when_its_guard_was_killed(standin: Standin) -> None:
    process, _ = standin.hold("required")
    os.kill(standin.marker()["guard_pid"], signal.SIGKILL)
    process.communicate("\n", timeout=60)
    assert standin.locked() == 0
    assert list(standin.state.iterdir()) == []


def test_the_lock_of_a_living_run_is_honoured(standin: Standin) -> None:
    process, _ = standin.hold("required")
    assert standin.ask("stale", str(standin.state)) == []
    assert standin.locked() == 900
    second = standin.ask("hold", str(standin.state), "preferred", "600")
    assert second["kind"] == "UnusableInput"
    assert "card 0 is held at 900 MHz by another run of this kit" in second["error"]
    assert standin.locked() == 900
    process.communicate("\n", timeout=60)


def test_another_card_can_be_held_by_a_second_run(standin: Standin) -> None:
    standin.set(count=2)
    first, _ = standin.hold("required", "900", "0")
    second, answer = standin.hold("required", "600", "1")
    assert answer["record"]["state"] == "locked"
    first.communicate("\n", timeout=60)
    assert (standin.locked(0), standin.locked(1)) == (0, 600)
    second.communicate("\n", timeout=60)


def test_a_marker_of_another_boot_is_dropped_without_a_reset(said: Said) -> None:
    (line,), standin = said["another boot"]
    assert line == "card 0 (GPU-standin-0): dropped the marker of an earlier boot; a lock does not outlive a boot"
    assert "0.resets" not in standin.read()
    assert list(standin.state.iterdir()) == []


def test_a_reused_process_id_is_not_the_guard(said: Said) -> None:
    lines, standin = said["a reused process id"]
    assert len(lines) == 1
    assert standin.locked() == 0


def test_a_card_that_is_not_visible_keeps_its_marker(said: Said) -> None:
    (line,), standin = said["not visible"]
    assert "not visible here" in line
    assert len(list(standin.state.iterdir())) == 1


def test_a_reset_that_the_driver_refuses_is_an_error_that_says_what_to_type(said: Said) -> None:
    answer, standin = said["a reset refused"]
    assert answer["kind"] == "RunFailed"
    assert answer["error"] == (
        "card 0 (GPU-standin-0): still locked at 900 MHz by a run that was killed, and the driver does not reset it "
        "(Insufficient Permissions); type `sudo -E invoke unlock`, or `sudo nvidia-smi -i 0 -rgc`"
    )
    assert len(list(standin.state.iterdir())) == 1


def test_a_damaged_marker_is_named(said: Said) -> None:
    answer, _ = said["a damaged marker"]
    assert answer["kind"] == "UnusableInput"
    assert answer["error"].startswith("lock-x.json in the state folder is damaged")


# ---- no lock to be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "state", "detail"),
    [
        ("no permission, preferred", "refused", "the driver does not lock the clock: Insufficient Permissions"),
        ("not lockable, preferred", "unsupported", "the driver does not lock the clock: Not Supported"),
        ("a lost card, preferred", "unsupported", "card 0 (None): has no UUID to lock it by"),
        ("no driver, preferred", "unsupported", "the NVIDIA driver is not loaded"),
    ],
)
def test_case_67_preferred_goes_on_and_says_so(said: Said, machine: str, state: str, detail: str) -> None:
    answer, standin = said[machine]
    assert answer["record"]["state"] == state
    assert detail in answer["record"]["detail"]
    assert answer["record"]["set_mhz"] is None
    assert "0.resets" not in standin.read()
    assert not list(standin.state.glob("*"))


def test_required_without_permission_says_what_to_type(said: Said) -> None:
    answer, _ = said["no permission, required"]
    assert answer["kind"] == "UnusableInput"
    assert answer["error"].startswith('gpu.lock = "required": card 0 (NVIDIA L4): the driver does not lock the clock')
    for words in ("sudo -E invoke run", "nvidia-smi -i 0 -pm 1", "-lgc 900,900", "--no-lock"):
        assert words in answer["error"]


def test_required_where_it_is_not_supported_names_the_way_out(said: Said) -> None:
    answer, _ = said["not lockable, required"]
    assert answer["kind"] == "UnusableInput"
    assert "`--set gpu.lock=preferred` or `--no-lock`" in answer["error"]


def test_the_first_card_is_reset_when_the_second_refuses(said: Said) -> None:
    answer, standin = said["one card of two refuses"]
    assert "card 1" in answer["error"]
    assert (standin.locked(0), standin.read()["0.locks"], standin.read()["0.resets"]) == (0, "1", "1")


@pytest.mark.parametrize(("machine", "lock"), [("--no-lock", "required"), ("off", "off")])
def test_off_touches_nothing(said: Said, machine: str, lock: str) -> None:
    answer, standin = said[machine]
    record = answer["record"]
    assert (record["asked"], record["state"]) == (lock, "off")
    assert record["detail"] == ("--no-lock" if machine == "--no-lock" else "")
    assert "0.locks" not in standin.read()
    assert not standin.state.exists()


def test_a_process_that_is_gone_has_no_start() -> None:
    assert gpu_guard._start_ticks(2**22) is None
    assert gpu_guard._start_ticks(os.getpid()) is not None
