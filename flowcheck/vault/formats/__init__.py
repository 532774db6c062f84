"""Every format a step is written in and read from, by name."""

from __future__ import annotations

from flowcheck.vault.formats.registry import FORMATS, read, write

__all__ = ["FORMATS", "read", "write"]
