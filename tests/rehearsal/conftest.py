"""The CPU server's environment, as far as this machine has it: these tests do not make it."""

from pathlib import Path

import pytest

from kit.rehearsal import CpuServer, ensure_environment
from kit.rehearsal.environment import MARKER, environment_key

CACHE = Path(__file__).parents[2] / ".cache" / "cpu-sglang"


@pytest.fixture(scope="session")
def cpu_server() -> CpuServer:
    if not (CACHE / environment_key() / MARKER).exists():
        pytest.skip(f"no CPU server's environment in {CACHE / environment_key()}: ./inv run --scenario smoke makes it")
    return ensure_environment(CACHE, lambda _: None)
