"""How shares and users are written in sentences. Knows nothing of what they are shares of."""


def percent(share: float, digits: int = 0) -> str:
    """0.587 as `59 %`."""
    return f"{100 * share:.{digits}f} %"


def users(count: int | None) -> str:
    """`1 user`, `16 users`."""
    return f"{count} user{'' if count == 1 else 's'}"
