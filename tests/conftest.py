"""What the caller's environment must not change: compiled modules are kept, since the tests start some two hundred
Pythons that would each compile the kit anew; and Ctrl-C ends what tests start, also when the shell started the tests in
the background, where it is ignored."""

import os
import signal
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
signal.signal(signal.SIGINT, signal.default_int_handler)
