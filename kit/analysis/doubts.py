"""All doubts of a run, the severe ones first. A new check is a function or a rule in one of the lists."""

from kit.analysis import doubts_drafts, doubts_servers, doubts_trials
from kit.analysis.doubt import Case, Doubt

_RANK = {"severe": 0, "warning": 1, "note": 2}


def doubts(case: Case) -> list[Doubt]:
    """Every doubt that the checks raise, by severity and then in the checks' order."""
    found = [d for check in (*doubts_trials.CHECKS, *doubts_drafts.CHECKS, *doubts_servers.CHECKS) for d in check(case)]
    return sorted(found, key=lambda d: _RANK[d.severity])
