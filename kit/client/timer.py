"""A timer of the kernel (timerfd) that fires through the event loop's own poll. Knows nothing of what is timed.

libuv's timers count whole milliseconds; a lag of half a millisecond could not be seen with them, nor a request be sent
on time. The kernel's timer becomes readable at its nanosecond, exactly as a socket does when a chunk comes in.
"""

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _Setting(ctypes.Structure):
    _fields_ = [("period_s", ctypes.c_long), ("period_ns", ctypes.c_long),
                ("first_s", ctypes.c_long), ("first_ns", ctypes.c_long)]  # fmt: skip


class KernelTimer:
    """Calls `fired(times)` from the loop with how often the timer expired since the last call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fired: Callable[[int], None]) -> None:
        self._loop = loop
        self._fired = fired
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS))
        loop.add_reader(self._fd, self._ready)

    def arm(self, at_monotonic_s: float, period_s: float = 0.0) -> None:
        """Fires at `at_monotonic_s` (at once when that is past) and then every `period_s`, if that is not 0."""
        at_ns = max(int(at_monotonic_s * 1e9), 1)
        setting = _Setting(*divmod(int(period_s * 1e9), 10**9), *divmod(at_ns, 10**9))
        self._checked(self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(setting), None))

    def close(self) -> None:
        """Takes the timer off the loop; it never fires again."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ready(self) -> None:
        try:
            times = struct.unpack("Q", os.read(self._fd, 8))[0]
        except BlockingIOError:  # armed anew between the poll and this read
            return
        self._fired(times)

    def _checked(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


class LagProbe:
    """Samples how late this loop reads what the kernel has ready: the timer is due at a known nanosecond.

    A loop that was blocked over several periods yields one sample for each, so a long stall weighs what it lasted.
    """

    PERIOD_S = 0.01313  # shares no beat with decode steps of whole milliseconds

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lags_s: list[float] = []
        self._due_s = time.monotonic() + self.PERIOD_S
        self._timer = KernelTimer(loop, self._sample)
        self._timer.arm(self._due_s, self.PERIOD_S)

    def close(self) -> None:
        """Ends the sampling; `lags_s` stays."""
        self._timer.close()

    def _sample(self, times: int) -> None:
        now_s = time.monotonic()
        for _ in range(times):
            self.lags_s.append(now_s - self._due_s)
            self._due_s += self.PERIOD_S
