"""The environment of a child process that is to run a module of this kit. Standard library only."""

import os
from pathlib import Path


def environment() -> dict[str, str]:
    """This process's environment, in which a child finds the same kit and the same libraries as its parent."""
    root = str(Path(__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
