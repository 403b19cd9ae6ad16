"""Draws a run's progress and the time left. The home of rich. Knows nothing of what is measured."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn


class Terminal:
    """Progress on a terminal: news above, one bar below; on a pipe, one line for each trial."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._began, self._done, self._total = time.monotonic(), 0, 0

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """One line of news."""
        self._console.print(text, markup=False, soft_wrap=True)

    def expect(self, trials: int) -> None:
        """Starts the count of trials; the time left is guessed from those that ended."""
        self._began, self._done, self._total = time.monotonic(), 0, trials
        self._task = self._bar.add_task("trials", total=trials, left="")
        self.say(f"{trials} trials to measure" if trials else "nothing left to measure")

    def trial(self, name: str, seconds: float | None) -> None:
        """A trial begins (`seconds` None) or ended."""
        if seconds is not None:
            self._done += 1
        left = self._time_left()
        if self._task is not None:
            self._bar.update(self._task, description=name, completed=self._done, left=left)
        if seconds is not None and not self._console.is_terminal:
            self.say(f"[{self._done}/{self._total}] {name} {seconds:.1f} s{', ' + left if left else ''}")

    def _time_left(self) -> str:
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
