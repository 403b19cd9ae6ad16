"""The error tree. Every message is one line that names the thing, the place and the way out.

KitError
├── UnusableInput      exit 2: what was given cannot be used; nothing was started, nothing measured
└── RunFailed          exit 1: a run or a verdict failed; what was measured is kept
    ├── ServerFailed   the server did not start, or died: carries the class of the failure and the log's last lines
    └── EngineLost     the container engine or the client's process went away in the middle

A request that fails is a record (`measurements.RequestError`), never an exception.
"""


class KitError(Exception):
    """Base of all errors that a user can cause or has to know of; `exit_code` is what the verb ends with."""

    exit_code = 1


class UnusableInput(KitError):
    """The scenario, data set, folder or flag given cannot be used."""

    exit_code = 2


class RunFailed(KitError):
    """A run or a verdict failed; whatever was measured stays on disk."""


class ServerFailed(RunFailed):
    """The SGLang server did not come up or died.

    `kind` is one of `kit.sglang.failure.FAILURE_KINDS`; `tail` holds the log's last meaningful lines.
    """

    def __init__(self, message: str, kind: str = "unknown", tail: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.tail = tail


class EngineLost(RunFailed):
    """The container engine, the client or the card went away while a trial ran."""
