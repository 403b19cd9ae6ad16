"""The stand-in kernels, each against plain maths, in the Python that they are for."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from kit.rehearsal import CpuServer

pytestmark = pytest.mark.server

CHECKS = Path(__file__).with_name("kernel_checks.py")
NAMES = [
    node.name
    for node in ast.parse(CHECKS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="session")
def outcomes(cpu_server: CpuServer) -> dict[str, str | None]:
    """All checks in one process: importing torch takes longer than they do."""
    command = [str(cpu_server.python), str(CHECKS)]
    done = subprocess.run(command, env=os.environ | cpu_server.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_stand_in(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]
