"""Rows of `invoke doctor`: what is right on this machine, what is not, the way out. Does not know how it is printed."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One row: what was looked at, how it stands, what was seen, and what to do when it is not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    way_out: str = ""
