"""The clock lock: held by a guard process, reset however run or guard end. The stand-in's file outlives them all."""

import json
import os
import signal
from pathlib import Path

import pytest
from standin import Standin, wait_until

from kit import gpu_guard


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


def test_a_marker_of_another_boot_is_dropped_without_a_reset(standin: Standin) -> None:
    leave_marker(standin, boot_id="another")
    (line,) = standin.ask("stale", str(standin.state))
    assert line == "card 0 (GPU-standin-0): dropped the marker of an earlier boot; a lock does not outlive a boot"
    assert "0.resets" not in standin.read()
    assert list(standin.state.iterdir()) == []


def test_a_reused_process_id_is_not_the_guard(standin: Standin) -> None:
    leave_marker(standin, guard_pid=os.getpid(), guard_start_ticks=1)
    standin.set(card0_lock=900)
    assert len(standin.ask("stale", str(standin.state))) == 1
    assert standin.locked() == 0


def test_a_card_that_is_not_visible_keeps_its_marker(standin: Standin) -> None:
    leave_marker(standin, uuid="GPU-elsewhere")
    (line,) = standin.ask("stale", str(standin.state))
    assert "not visible here" in line
    assert len(list(standin.state.iterdir())) == 1


def test_a_reset_that_the_driver_refuses_is_an_error_that_says_what_to_type(standin: Standin) -> None:
    leave_marker(standin)
    standin.set(card0_lock=900, card0_stuck=1)
    answer = standin.ask("stale", str(standin.state))
    assert answer["kind"] == "RunFailed"
    assert answer["error"] == (
        "card 0 (GPU-standin-0): still locked at 900 MHz by a run that was killed, and the driver does not reset it "
        "(Insufficient Permissions); type `sudo -E invoke unlock`, or `sudo nvidia-smi -i 0 -rgc`"
    )
    assert len(list(standin.state.iterdir())) == 1


def test_a_damaged_marker_is_named(standin: Standin) -> None:
    standin.state.mkdir()
    (standin.state / "lock-GPU-x.json").write_text("{")
    answer = standin.ask("stale", str(standin.state))
    assert answer["kind"] == "UnusableInput"
    assert answer["error"].startswith("lock-GPU-x.json in the state folder is damaged")


def leave_marker(standin: Standin, **changes: object) -> None:
    """What a guard that was killed leaves behind."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    marker = {
        "uuid": "GPU-standin-0",
        "index": 0,
        "boot_id": boot,
        "guard_pid": 2**22,
        "guard_start_ticks": 1,
        "mhz": 900,
    }
    standin.state.mkdir()
    (standin.state / "lock-x.json").write_text(json.dumps(marker | changes))


# ---- no lock to be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "state", "detail"),
    [
        ({"card0_permission": 0}, "refused", "the driver does not lock the clock: Insufficient Permissions"),
        ({"card0_lockable": 0}, "unsupported", "the driver does not lock the clock: Not Supported"),
        ({"card0_fail": 15}, "unsupported", "card 0 (None): has no UUID to lock it by"),
        ({"init": 9}, "unsupported", "the NVIDIA driver is not loaded"),
    ],
)
def test_case_67_preferred_goes_on_and_says_so(standin: Standin, keys: dict[str, int], state: str, detail: str) -> None:
    standin.set(**keys)
    process, answer = standin.hold("preferred")
    assert answer["record"]["state"] == state
    assert detail in answer["record"]["detail"]
    assert answer["record"]["set_mhz"] is None
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert "0.resets" not in standin.read()
    assert not list(standin.state.glob("*"))


def test_required_without_permission_says_what_to_type(standin: Standin) -> None:
    standin.set(card0_permission=0)
    answer = standin.ask("hold", str(standin.state), "required")
    assert answer["kind"] == "UnusableInput"
    assert answer["error"].startswith('gpu.lock = "required": card 0 (NVIDIA L4): the driver does not lock the clock')
    for words in ("sudo -E invoke run", "nvidia-smi -i 0 -pm 1", "-lgc 900,900", "--no-lock"):
        assert words in answer["error"]


def test_required_where_it_is_not_supported_names_the_way_out(standin: Standin) -> None:
    standin.set(card0_lockable=0)
    answer = standin.ask("hold", str(standin.state), "required")
    assert answer["kind"] == "UnusableInput"
    assert "`--set gpu.lock=preferred` or `--no-lock`" in answer["error"]


def test_the_first_card_is_reset_when_the_second_refuses(standin: Standin) -> None:
    standin.set(count=2, card1_permission=0)
    answer = standin.ask("hold", str(standin.state), "required", "900", "0,1")
    assert "card 1" in answer["error"]
    assert (standin.locked(0), standin.read()["0.locks"], standin.read()["0.resets"]) == (0, "1", "1")


@pytest.mark.parametrize(("verb", "lock", "detail"), [("hold-off", "required", "--no-lock"), ("hold", "off", "")])
def test_off_touches_nothing(standin: Standin, verb: str, lock: str, detail: str) -> None:
    process = standin.start(verb, str(standin.state), lock)
    assert process.stdout is not None
    record = json.loads(process.stdout.readline())["record"]
    assert (record["asked"], record["state"], record["detail"]) == (lock, "off", detail)
    process.communicate("\n", timeout=60)
    assert "0.locks" not in standin.read()
    assert not standin.state.exists()


def test_a_process_that_is_gone_has_no_start() -> None:
    assert gpu_guard._start_ticks(2**22) is None
    assert gpu_guard._start_ticks(os.getpid()) is not None
