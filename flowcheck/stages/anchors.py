"""What anchors.jsonl of a run tells: readers of it need nothing of a replica."""

from __future__ import annotations

import msgspec


class AnchorLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of anchors.jsonl."""

    step: int
    file: str
    request: str
    """Tells it apart from others of the same step."""
    at: int
    """The replica's step then."""
    refused: str = ""
