"""Codes of findings, and of those that stand inside others."""

from __future__ import annotations

from collections.abc import Iterable

from flowcheck.findings.finding import Finding


def codes(findings: Iterable[Finding]) -> set[str]:
    """Of all of them, and of the findings among their arguments."""
    found: set[str] = set()
    for one in findings:
        found.add(one.code)
        for value in one.arguments.values():
            inner = value if isinstance(value, tuple) else (value,)
            found |= codes(each for each in inner if isinstance(each, Finding))
    return found
