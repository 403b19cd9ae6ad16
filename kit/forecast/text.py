"""The forecast for people and for programs. Knows nothing of how its numbers were made."""

import msgspec
from tabulate import tabulate

from kit.forecast import ArmForecast, DraftCost, Forecast
from kit.forecast.memory import Range


def forecast_json(f: Forecast) -> str:
    """The forecast as JSON: `arms`, then name to figures; `draft_cost_mib`; missing is null."""
    return msgspec.json.format(msgspec.json.encode(f), indent=2).decode() + "\n"


def forecast_text(f: Forecast) -> str:
    """A table of the arms, then what it means in words."""
    head = (
        f"Forecast for {f.scenario} on {f.card}, SGLang {f.sglang}; nothing was started, nothing measured.\n"
        f"Free before the weights: {f.free_gib.low:.2f} to {f.free_gib.high:.2f} GiB ({f.source})."
    )
    lines = [*_draft_lines(f), *_arm_lines(f), *f.notes]
    return "\n".join([head, "", _table(f), "", *(f"- {line}" for line in lines)]) + "\n"


def _table(f: Forecast) -> str:
    data = list(f.request_tokens)
    heads = ["arm", "starts", "KV pool (tokens)", "KV bytes/token", "weights (MiB)", "draft (MiB)", "running cap"]
    heads += [f"{name}: fit at once ({f.request_tokens[name]:,} tokens each)" for name in data]
    rows = [_row(name, arm, data) for name, arm in f.arms.items()]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _row(name: str, arm: ArmForecast, data: list[str]) -> list[str]:
    figures = [arm.bytes_per_token, arm.weights_mib, arm.draft_mib]
    return [
        name,
        arm.starts,
        _span(arm.pool_tokens),
        *("n/a" if v is None else f"{v:,.0f}" for v in figures),
        _span(arm.max_running_requests),
        *(_span(arm.requests_that_fit.get(d)) for d in data),
    ]


def _span(ends: Range[int] | None) -> str:
    if ends is None:
        return "n/a"
    return f"{ends.low:,}" if ends.low == ends.high else f"{ends.low:,} to {ends.high:,}"


def _draft_lines(f: Forecast) -> list[str]:
    cost = f.draft
    if cost is None:
        return []
    split = ", ".join(f"{part.name} {part.mib:,.0f}" for part in cost.split)
    lines = [f"The draft holds {cost.mib:,.0f} MiB while the pool is sized: {split}."]
    if not cost.counted:
        return [*lines, "This SGLang sizes the pool before it loads the draft: the draft comes out of what is left."]
    return [*lines, *_loss_lines(f, cost)]


def _loss_lines(f: Forecast, cost: DraftCost) -> list[str]:
    if cost.tokens is None:
        return []
    if cost.tokens.high == 0:
        return ["--max-total-tokens sets both pools below what the memory gives: here the draft costs no pool."]
    users = "; ".join(
        f"{_span(lost)} requests of {f.request_tokens[name]:,} tokens ({name})" for name, lost in cost.requests.items()
    )
    lines = [f"Against {f.baseline} that is {_span(cost.tokens)} tokens of pool" + (f": {users}." if users else ".")]
    pool = f.arms[cost.arm].pool_tokens
    if pool and pool.low == pool.high:
        return [f"--max-total-tokens sets {cost.arm}'s pool below what the memory gives: the draft costs none of it."]
    if cost.freed_mib:
        lines.append(
            f"{cost.freed_mib:,.0f} MiB of it are a second copy of the embedding that is dropped right after the pool "
            f"was sized: about {cost.freed_tokens:,} tokens of pool are lost to that order and never come back."
        )
    if cost.uncollected_mib:
        lines.append(
            f"The low ends allow for {cost.uncollected_mib:,.0f} MiB that the draft's constructor builds and replaces: "
            f"SGLang before 0.5.23 may size the pool before Python has collected them (seen with random weights)."
        )
    return lines


def _arm_lines(f: Forecast) -> list[str]:
    """What is to be said of arms; arms of which the same holds share a line."""
    arms_by_line: dict[str, list[str]] = {}
    for name, arm in f.arms.items():
        for line in _said(arm):
            arms_by_line.setdefault(line, []).append(name)
    return [f"{', '.join(arms)}: {line}" for line, arms in arms_by_line.items()]


def _said(arm: ArmForecast) -> list[str]:
    if arm.cannot_tell:
        return [f"cannot tell: {arm.cannot_tell}."]
    lines = [_cap(arm)] if arm.capped_by_speculation else []
    if arm.starts == "no":
        lines.append("the weights leave nothing for the pool: raise --mem-fraction-static or free memory.")
    if arm.starts == "cannot tell":
        lines.append("whether it starts depends on memory that is not known beforehand.")
    return lines + [f"{note}." for note in arm.notes]


def _cap(arm: ArmForecast) -> str:
    cap = arm.max_running_requests
    said = "no --max-running-requests is set, and speculation caps it at 48 with one warning"
    smaller = [name for name, fit in arm.requests_that_fit.items() if cap and fit.high < cap.low]
    if smaller:
        return f"{said}; the pool is the tighter limit ({', '.join(smaller)})."
    return f"{said}."
