"""From a scenario's arm to a command line."""

from pathlib import Path

import pytest

from kit.errors import UnusableInput
from kit.scenario import Arm, Dataset, Model, Scenario, Server, Sweep
from kit.sglang import launch


def scenario(server: Server, **arms: Arm) -> Scenario:
    return Scenario(
        title="t",
        question="q",
        name="s",
        engine="process",
        model=Model(path="m"),
        draft=Model(path="d"),
        arms={"plain": Arm(), **arms},
        datasets={"random": Dataset(source="random", input_len=8, output_len=8)},
        sweep=Sweep(concurrency=[1], seeds=[1]),
        server=server,
    )


def test_an_arms_flags_lie_over_the_servers_and_those_over_the_machines() -> None:
    shared = Server(flags={"mem-fraction-static": 0.85, "enable-metrics": True, "page-size": 1}, port=31000)
    arm = Arm(flags={"page-size": 16, "enable-metrics": False, "disable-radix-cache": True}, draft=True)
    argv = launch.arguments(
        scenario(shared, spec=arm), "spec", Path("/m"), Path("/d"), 31000, {"device": "cpu", "page-size": 64}
    )
    assert argv[:8] == ["-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "31000"]
    assert argv[8:] == [
        "--speculative-draft-model-path", "/d", "--device", "cpu", "--page-size", "16", "--random-seed", "1",
        "--mem-fraction-static", "0.85", "--disable-radix-cache",
    ]  # fmt: skip


def test_a_seed_of_the_scenario_stays() -> None:
    argv = launch.arguments(scenario(Server(flags={"random-seed": 7})), "plain", Path("/m"), None, 1)
    assert argv.count("--random-seed") == 1
    assert argv[argv.index("--random-seed") + 1] == "7"


@pytest.mark.parametrize(
    ("flag", "way_out"),
    [
        ("model-path", "[model] path"),
        ("host", "127.0.0.1"),
        ("port", "server.port"),
        ("speculative-draft-model-path", "draft = true"),
        ("mem_fraction_static", "'mem-fraction-static'"),
        ("--page-size", "'page-size'"),
        ("hicache-storage-backend", "outlives the flush"),  # case 33
    ],
)
def test_flags_that_a_scenario_must_not_set(flag: str, way_out: str) -> None:
    with pytest.raises(UnusableInput) as raised:
        launch.arguments(scenario(Server(), bad=Arm(flags={flag: "x"})), "bad", Path("/m"), None, 1)
    assert f"s.toml: arms.bad.flags.{flag}" in str(raised.value)
    assert way_out in str(raised.value)


def test_the_environment_keeps_health_checks_from_generating_and_takes_the_arms_last() -> None:
    made = scenario(Server(env={"A": "server", "B": "server"}), spec=Arm(env={"B": "arm"}))
    env = launch.environment(made, "spec")
    assert env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert (env["A"], env["B"]) == ("server", "arm")


def test_forced_accept_length() -> None:
    assert launch.forced_accept_length({"SGLANG_SIMULATE_ACC_LEN": "2.73"}) == 2.73
    assert launch.forced_accept_length({"SGLANG_SIMULATE_ACC_LEN": "-1"}) is None
    assert launch.forced_accept_length({}) is None
    with pytest.raises(UnusableInput):
        launch.forced_accept_length({"SGLANG_SIMULATE_ACC_LEN": "long"})
