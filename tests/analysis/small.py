"""Truths with short answers: as long in all as the article's 640 tokens, and quicker to make and to analyse."""

from tests.synthetic import Truth


def small(**fields: object) -> Truth:
    """A truth of 600 tokens in and 40 out; fields as of `Truth`."""
    return Truth(**{"input_len": 600, "output_len": 40, **fields})  # type: ignore[arg-type]
