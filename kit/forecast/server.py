"""One arm's server as far as memory goes: from flags and facts to the budget and the pool at either end.

Knows the flags that move memory; does not know what is compared with what.
"""

from collections.abc import Callable

import msgspec

from kit.forecast.memory import Memory, Range, Version, fraction_static
from kit.forecast.pool import (
    DRAFTING,
    GIB,
    SPECULATIVE_CAP,
    budget_bytes,
    cell_bytes,
    counts_draft,
    extra_tokens,
    pool_tokens,
)
from kit.forecast.shapes import MIB, CannotTell, Facts, Shape, count, precision
from kit.scenario import Arm, FlagValue, Scenario

# Taken between the last load and the sizing (a longer rotary cache, kernels): 15 and 24 MiB in the H200 captures.
BETWEEN_LOADS_MIB = (0, 48)
COLLECTS_GARBAGE: Version = (0, 5, 23)  # sizes after gc.collect(); 0.5.17 does not, those between were not read
ONE_CARD_FLAGS = ("tp-size", "tp", "tensor-parallel-size", "pp-size", "dp-size", "dp")
SPECULATIVE_DEFAULTS = (("num-steps", 3), ("eagle-topk", 1), ("num-draft-tokens", 4))


class ArmServer(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's server as far as memory goes."""

    flags: dict[str, FlagValue]
    target: Shape
    draft: Shape | None
    memory: Memory
    version: Version

    @property
    def counted(self) -> Shape | None:
        """The draft, if it is there when the pools are sized."""
        return self.draft if counts_draft(self.version) else None

    @property
    def cell(self) -> int:
        """Bytes of pool per token."""
        return cell_bytes(self.target, self.counted)

    @property
    def fraction(self) -> Range[float]:
        """The static share."""
        return fraction_static(self.flags, self.memory, self.version)

    @property
    def uncollected_bytes(self) -> int:
        """At most this much of the draft's constructor is still held when the pools are sized."""
        return self.counted.built_twice_bytes if self.counted and self.version < COLLECTS_GARBAGE else 0


def server_of(
    scenario: Scenario, arm: Arm, target: Facts, draft: Facts | None, memory: Memory, version: Version
) -> ArmServer:
    """Raises CannotTell with what is unknown."""
    flags = {**scenario.server.flags, **arm.flags}
    _refuse_what_has_no_rule(flags, arm)
    return ArmServer(
        flags=flags,
        target=_target_shape(target, flags),
        draft=_draft_shape(draft, arm, flags),
        memory=memory,
        version=version,
    )


def _target_shape(facts: Facts, flags: dict[str, FlagValue]) -> Shape:
    return count(facts.config, precision(facts.config, flags, _method(flags, "quantization")))


def _draft_shape(facts: Facts | None, arm: Arm, flags: dict[str, FlagValue]) -> Shape | None:
    if not arm.draft or facts is None:
        return None
    method = _method(flags, "speculative-draft-model-quantization") or _method(flags, "quantization")
    return count(facts.config, precision(facts.config, flags, method))


def _method(flags: dict[str, FlagValue], flag: str) -> str | None:
    return str(flags[flag]) if flag in flags else None


def _refuse_what_has_no_rule(flags: dict[str, FlagValue], arm: Arm) -> None:
    for flag in ONE_CARD_FLAGS:
        if int(flags.get(flag, 1)) != 1:
            raise CannotTell(f"--{flag} {flags[flag]}: the forecast has rules for one card")
    algorithm = str(flags.get("speculative-algorithm", ""))
    if algorithm not in ("", "NGRAM", *DRAFTING):
        raise CannotTell(f"--speculative-algorithm {algorithm}: no rule for its memory")
    if algorithm in DRAFTING and not arm.draft:
        raise CannotTell(f"--speculative-algorithm {algorithm} without draft = true: its draft is not known")


def budgets(server: ArmServer, uncollected: int) -> Range[int]:
    """Bytes for the pools at the unkind and at the kind end of the card's uncertainty."""
    held = server.target.weights_bytes + (server.counted.weights_bytes if server.counted else 0) + uncollected

    def budget(free_gib: float, between_mib: int, fraction: float) -> int:
        return budget_bytes(free_gib, free_gib - (held + between_mib * MIB) / GIB, fraction)

    free, fraction = server.memory.free_gib, server.fraction
    return Range(
        budget(free.low, BETWEEN_LOADS_MIB[1], fraction.low), budget(free.high, BETWEEN_LOADS_MIB[0], fraction.high)
    )


def tokens_of(server: ArmServer, budget: Range[int]) -> Range[int]:
    """The pool at both ends of a budget, in whole pages, capped, with what versions up to 0.5.9 add."""
    flags = server.flags
    page, cap = int(flags.get("page-size", 1)), whole(flags.get("max-total-tokens"))
    more = 0
    if server.draft:
        running = whole(flags.get("max-running-requests")) or SPECULATIVE_CAP
        numbers = [int(flags.get(f"speculative-{k}", d)) for k, d in SPECULATIVE_DEFAULTS]
        more = extra_tokens(server.version, running, *numbers)
    return over(budget, lambda b: pool_tokens(b, server.cell, page, cap) + (more if b > 0 else 0))


def slack(server: ArmServer, tokens: Range[int]) -> Range[float] | None:
    """GiB left when a draft is loaded after the pool was sized; None where that is not the order."""
    draft, free = server.draft, server.memory.free_gib
    if draft is None or server.counted:
        return None
    held, cell = draft.weights_bytes, draft.kv_bytes_per_token
    return Range(
        free.low * (1 - server.fraction.high) - (held + tokens.low * cell) / GIB,
        free.high * (1 - server.fraction.low) - (held + tokens.high * cell) / GIB,
    )


def starts(budget: Range[int], left: Range[float] | None) -> str:
    """Whether pool and draft find memory: "yes", "no", or "cannot tell" when the ends disagree."""
    least = min(budget.low, left.low if left else 1)
    most = min(budget.high, left.high if left else 1)
    if most <= 0:
        return "no"
    return "yes" if least > 0 else "cannot tell"


def context_of(server: ArmServer) -> int:
    """The context length in tokens: as asked for, or the model's."""
    return int(server.flags.get("context-length", server.target.context_tokens))


def whole(value: FlagValue | None) -> int | None:
    """A flag's number, None when it is not set."""
    return None if value is None else int(value)


def over(ends: Range[int], rule: Callable[[int], int]) -> Range[int]:
    """A rule at both ends."""
    return Range(rule(ends.low), rule(ends.high))
