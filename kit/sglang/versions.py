"""Which SGLang version prints and answers what, as data. Knows nothing of how a log is read.

Rows hold for the releases named and their post-releases; they were read in the wheels and checked on real servers.
Another release is read by the lines that never changed, and is marked as unknown.
"""

import re

import msgspec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One release: the forms of its log lines and the keys of its answers; None where it does not say.

    `kv_line_dtype`: the KV line names the dtype. `graph_line`: the words around "graph" of the capture lines.
    `weights_line`: the fields of the weights line that differ. `flush_waits`: /flush_cache honours `?timeout=`.
    `running_limit_key`: where /server_info tells the limit in force. The other keys belong to a request's `meta_info`.
    """

    release: str
    kv_line_dtype: bool
    graph_line: str
    weights_line: str
    flush_waits: bool
    running_limit_key: str | None
    retractions_key: str
    correct_drafts_key: str
    proposed_drafts_key: str
    accept_rate_counts_bonus: bool


KNOWN = (
    Version(
        release="0.5.6",
        kv_line_dtype=False,
        graph_line="Capture cuda graph",
        weights_line="dtype",
        flush_waits=False,
        running_limit_key=None,
        retractions_key="total_retractions",
        correct_drafts_key="spec_accept_token_num",
        proposed_drafts_key="spec_draft_token_num",
        accept_rate_counts_bonus=True,
    ),
    Version(
        release="0.5.12",
        kv_line_dtype=False,
        graph_line="Capture cuda graph",
        weights_line="elapsed",
        flush_waits=True,
        running_limit_key="effective_max_running_requests_per_dp",
        retractions_key="num_retractions",
        correct_drafts_key="spec_num_correct_drafts",
        proposed_drafts_key="spec_num_proposed_drafts",
        accept_rate_counts_bonus=False,
    ),
    Version(
        release="0.5.17",
        kv_line_dtype=True,
        graph_line="Capture target verify CUDA graph",
        weights_line="elapsed",
        flush_waits=True,
        running_limit_key="effective_max_running_requests_per_dp",
        retractions_key="num_retractions",
        correct_drafts_key="spec_num_correct_drafts",
        proposed_drafts_key="spec_num_proposed_drafts",
        accept_rate_counts_bonus=False,
    ),
    Version(
        release="0.5.23",
        kv_line_dtype=True,
        graph_line="Capture target verify CUDA graph",
        weights_line="elapsed",
        flush_waits=True,
        running_limit_key="effective_max_running_requests_per_dp",
        retractions_key="num_retractions",
        correct_drafts_key="spec_num_correct_drafts",
        proposed_drafts_key="spec_num_proposed_drafts",
        accept_rate_counts_bonus=False,
    ),
)


def find(version: str | None) -> Version | None:
    """The row of a version or of its post-release ("0.5.6.post2"); None for a version this kit has not seen."""
    release = re.sub(r"\.post\d+.*|\+.*", "", version or "")
    return next((row for row in KNOWN if row.release == release), None)
