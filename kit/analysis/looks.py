"""How the error of a verdict is spent over planned looks at growing data. Pure arithmetic.

`run --until-decided` looks after each added block of seeds and stops where a point is decided. Looking n times at 5 %
each would claim a difference too often; so each look gets a share of the 5 %, and the shares sum to it. By the union
bound that holds however the looks depend on each other. The shares follow Pocock's spending function, which leaves
most to the first look: it is the one at which most points are open.
"""

from math import e, log

ALPHA = 0.05


def look_level(look: int, looks: int, alpha: float = ALPHA) -> float:
    """The level of look number `look` (from 1) of `looks` planned ones; the levels of all looks sum to `alpha`."""
    if not 1 <= look <= looks:
        raise ValueError(f"look {look} of {looks}: looks count from 1 to the number planned")
    return _spent(look / looks, alpha) - _spent((look - 1) / looks, alpha)


def _spent(share: float, alpha: float) -> float:
    return alpha * log(1 + (e - 1) * share)
