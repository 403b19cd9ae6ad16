"""Which SGLang releases this kit has read, and in what their logs differ. Knows nothing of how a log is read.

Rows hold for the releases named and their post-releases; they were read in the wheels and checked on real servers.
Another release is read by the lines that never changed, and is marked as unknown.
"""

import re

import msgspec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One release. `kv_line_dtype`: its line on the KV cache names the dtype."""

    release: str
    kv_line_dtype: bool


KNOWN = (
    Version(release="0.5.6", kv_line_dtype=False),
    Version(release="0.5.12", kv_line_dtype=False),
    Version(release="0.5.17", kv_line_dtype=True),
    Version(release="0.5.23", kv_line_dtype=True),
)


def find(version: str | None) -> Version | None:
    """The row of a version or of its post-release ("0.5.6.post2"); None for a version this kit has not seen."""
    release = re.sub(r"\.post\d+.*|\+.*", "", version or "")
    return next((row for row in KNOWN if row.release == release), None)
