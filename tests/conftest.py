"""Compiled modules are kept, whatever the caller's environment says: the tests start some two hundred Pythons, and each
of them would compile the kit anew, as each run would compile the tests."""

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
