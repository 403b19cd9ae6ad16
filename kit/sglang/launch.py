"""How an SGLang server is asked to start: its arguments and environment. Knows nothing of engines and logs."""

from pathlib import Path

from kit.errors import UnusableInput
from kit.scenario import FlagValue, Scenario

HOST = "127.0.0.1"

# The kit sets these itself; a scenario that sets them would start another server than the one that is recorded.
OWN_FLAGS = {
    "model-path": "[model] path",
    "model": "[model] path",
    "host": "nothing: the server listens on 127.0.0.1",
    "port": "server.port",
    "served-model-name": "nothing: each start gets a name of its own, by which the kit knows its server again",
    "speculative-draft-model-path": "[draft] path and draft = true",
    "speculative-draft-model": "[draft] path and draft = true",
}
# A flush does not reach these, so that a trial would find the answers of the one before it in the cache.
UNFLUSHED_FLAGS = ("hicache-storage-backend",)
DEFAULT_FLAGS: dict[str, FlagValue] = {"random-seed": 1}  # SGLang draws a seed at each start otherwise

ENVIRONMENT = {
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health would generate tokens in the middle of a trial
    "HF_HUB_OFFLINE": "1",  # weights are on disk by now: a server that asks the hub starts later or not at all
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",  # the log is read while it is written
}


def arguments(
    scenario: Scenario,
    arm_name: str,
    model_path: Path,
    draft_path: Path | None,
    port: int,
    machine_flags: dict[str, FlagValue] | None = None,
) -> list[str]:
    """What follows the Python executable: `-m sglang.launch_server …`, the arm's flags over those of `[server]`.

    `machine_flags` are what this machine needs (a CPU rehearsal's); a scenario's flags lie over them. True is a bare
    flag and False leaves it out. `--decode-log-interval` stays on SGLang's 40: a line per step would cost what is to be
    measured. Raises UnusableInput for a flag that the kit sets itself.
    """
    arm = scenario.arms[arm_name]
    if arm.draft and draft_path is None:
        raise UnusableInput(f"arms.{arm_name}.draft is true, but there is no draft model; add [draft] path")
    _refuse(scenario, arm_name)
    argv = ["-m", "sglang.launch_server", "--model-path", str(model_path), "--host", HOST, "--port", str(port)]
    if arm.draft:
        argv += ["--speculative-draft-model-path", str(draft_path)]
    for name, value in {**(machine_flags or {}), **flags(scenario, arm_name)}.items():
        argv += _spell(name, value)
    return argv


def flags(scenario: Scenario, arm_name: str) -> dict[str, FlagValue]:
    """The flags of an arm as they will be passed, by name without dashes."""
    return {**DEFAULT_FLAGS, **scenario.server.flags, **scenario.arms[arm_name].flags}


def environment(scenario: Scenario, arm_name: str) -> dict[str, str]:
    """What is added to the server's environment: the kit's defaults, then `[server].env`, then the arm's."""
    return {**ENVIRONMENT, **scenario.server.env, **scenario.arms[arm_name].env}


def forced_accept_length(env: dict[str, str]) -> float | None:
    """The accept length that SGLANG_SIMULATE_ACC_LEN forces, None where nothing is forced."""
    try:
        forced = float(env.get("SGLANG_SIMULATE_ACC_LEN", "-1"))
    except ValueError:
        raise UnusableInput(
            f"SGLANG_SIMULATE_ACC_LEN={env['SGLANG_SIMULATE_ACC_LEN']!r} is no number; give tokens per step, as in 2.73"
        ) from None
    return forced if forced >= 0 else None  # below 0 SGLang has it off


def _spell(name: str, value: FlagValue) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]


def _refuse(scenario: Scenario, arm_name: str) -> None:
    for place, table in (("server", scenario.server.flags), (f"arms.{arm_name}", scenario.arms[arm_name].flags)):
        for name in table:
            fault = _fault(name)
            if fault:
                raise UnusableInput(f"{scenario.name}.toml: {place}.flags.{name}: {fault}")


def _fault(name: str) -> str:
    if name.startswith("-") or "_" in name:
        return f"write the flag as {name.lstrip('-').replace('_', '-')!r}, without leading dashes"
    if name in OWN_FLAGS:
        return f"the kit sets --{name} itself; use {OWN_FLAGS[name]}"
    if name in UNFLUSHED_FLAGS:
        return "this cache outlives the flush between trials; leave it out of a benchmark"
    return ""
