"""Draws a run's progress and the time left. The home of rich. Knows nothing of what is measured."""

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
        self._trial_s: list[float] = []
        self._start_s: list[float] = []
        self._trials, self._starts = 0, 0

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

    def expect(self, trials: int, starts: int) -> None:
        """Starts the count; the time left is guessed from the trials and server starts that ended."""
        self._trials, self._starts = len(self._trial_s) + trials, len(self._start_s) + starts
        if self._task is None:
            self._task = self._bar.add_task("trials", left="")
        self._bar.update(self._task, total=self._trials)
        self.say(f"{trials} trials to measure on {starts} server starts" if trials else "nothing left to measure")

    def started(self, seconds: float) -> None:
        """A server start took so long."""
        self._start_s.append(seconds)

    def trial(self, name: str, seconds: float | None) -> None:
        """A trial begins (`seconds` None) or ended."""
        if seconds is not None:
            self._trial_s.append(seconds)
        done, left = len(self._trial_s), self._time_left()
        if self._task is not None:
            self._bar.update(self._task, description=name, completed=done, left=left)
        if seconds is not None and not self._console.is_terminal:
            self.say(f"[{done}/{self._trials}] {name} {seconds:.1f} s{left}")

    def _time_left(self) -> str:
        if not self._trial_s or not self._start_s:
            return ""
        trials, starts = self._trials - len(self._trial_s), self._starts - len(self._start_s)
        seconds = _mean(self._trial_s) * trials + _mean(self._start_s) * starts
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
