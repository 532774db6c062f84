"""The page of failures (ops/lifecycle/README.md): its tables are made from the catalogue.

`python -m flowcheck.findings.failures_page` writes them anew; a test holds page and catalogue
together.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

from flowcheck.findings.finding import Entry, entries

PAGE = Path(__file__).parents[1] / "ops/lifecycle/README.md"
_TABLE = re.compile(r"<!-- findings: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_HEAD = "| It says | It means | Do |\n| --- | --- | --- |\n"


def quoted(entry: Entry) -> str:
    """Its sentence with an ellipsis in the place of what differs each time."""
    parts = string.Formatter().parse(entry.sentence)
    return "".join(text + ("" if name is None else "\u2026") for text, name, _, _ in parts)


def table(section: str) -> str:
    """The rows of one section, in the order of their codes: that of the catalogue depends on which
    modules a process imported first. Raises ValueError for a section without any."""
    rows = [
        f"| `{quoted(entry)}` | {entry.cause} | {entry.remedy} |\n"
        for _, entry in sorted(entries().items())
        if entry.section == section
    ]
    if not rows:
        raise ValueError(f"no entry of the catalogue is of the section {section!r}")
    return _HEAD + "".join(rows)


def filled(page: str) -> str:
    """The page with every table as the catalogue has it now."""
    return _TABLE.sub(
        lambda found: f"<!-- findings: {found[1]} -->\n{table(found[1])}<!-- end -->", page
    )


def sections(page: str) -> list[str]:
    """Of all tables on the page."""
    return [found[1] for found in _TABLE.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
