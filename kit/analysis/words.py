"""How shares, counts and users are written in sentences. Knows nothing of what they are shares of."""

from collections.abc import Sequence


def percent(share: float, digits: int = 0) -> str:
    """0.587 as `59 %`."""
    return f"{100 * share:.{digits}f} %"


def counted(count: int, what: str) -> str:
    """`1 trial`, `24 trials`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def users_text(count: int | None) -> str:
    """`1 user`, `16 users`."""
    return f"{count} user{'' if count == 1 else 's'}"


def listed_users(counts: Sequence[int]) -> str:
    """`1 user`, `8, 16 and 32 users`."""
    if len(counts) == 1:
        return users_text(counts[0])
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} users"
