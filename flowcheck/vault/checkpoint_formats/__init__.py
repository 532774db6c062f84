"""Every checkpoint format that is written and read, by name."""

from __future__ import annotations

from flowcheck.vault.checkpoint_formats.format_registry import FORMATS, read, write

__all__ = ["FORMATS", "read", "write"]
