"""The pages of failures, made from the catalogue: what is met most often, by what was tried
(ops/lifecycle/README.md), and all the rest that has a remedy (findings/README.md).

`python -m flowcheck.findings.failures_page` writes both anew; a test holds pages and catalogue
together.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import string
from pathlib import Path

import flowcheck.findings.catalog
from flowcheck.findings.finding import Entry, entries

PACKAGE = Path(__file__).parents[1]
PAGE = PACKAGE / "ops/lifecycle/README.md"
FULL_PAGE = PACKAGE / "findings/README.md"
_TABLE = re.compile(r"<!-- findings: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_HEAD = "| It says | It means | Do |\n| --- | --- | --- |\n"
_FULL_HEAD = """# Every failure and what to do

What FlowCheck says when it refuses something, follows no job or loses a step, with what it means
and what to do (`…` stands for names and numbers). The failures that are met most often are in
[When something is wrong](../ops/lifecycle/README.md), and not repeated here. Errors print the last
two columns under the sentence; `up`, `replay`, `status` and `analyze` print the last one. In JSON
they are `cause` and `remedy` of an error and of each finding, of every command. Commands are
printed as they are to be pasted: with the run directory that they are about for `--run DIR`, and
without the option for the default one.

`python -m flowcheck.findings.failures_page` makes this page from the catalogue (`catalog/`), with a
table for each of its files.
"""


def quoted(entry: Entry) -> str:
    """Its sentence with an ellipsis in the place of what differs each time."""
    return with_ellipses(entry.sentence).replace("\n", " ")


def with_ellipses(text: str) -> str:
    """A sentence or remedy of the catalogue without its arguments; a command about a run names it
    as an example does."""
    parts = string.Formatter().parse(text)
    return "".join(
        said + ("" if name is None else " --run DIR" if conversion == "o" else "\u2026")
        for said, name, _, conversion in parts
    )


def _row(entry: Entry) -> str:
    """A sentence with backticks stands between two of them."""
    said = quoted(entry)
    code = f"`` {said} ``" if "`" in said else f"`{said}`"
    return f"| {code} | {entry.cause} | {with_ellipses(entry.remedy)} |\n"


def table(section: str) -> str:
    """The rows of one section, in the order of their codes: that of the catalogue depends on which
    modules a process imported first. Raises ValueError for a section without any."""
    rows = [_row(entry) for _, entry in sorted(entries().items()) if entry.section == section]
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


def full_page() -> str:
    """Every entry that has a remedy and no section, by the file of the catalogue it is in."""
    room, parts = flowcheck.findings.catalog, [_FULL_HEAD]
    for found in sorted(pkgutil.iter_modules(room.__path__), key=lambda one: one.name):
        module = importlib.import_module(f"{room.__name__}.{found.name}")
        own = {one.code: one for one in vars(module).values() if isinstance(one, Entry)}
        rows = [_row(one) for _, one in sorted(own.items()) if one.remedy and not one.section]
        if rows:
            about = (module.__doc__ or "").split("\n\n")[0]
            parts.append(f"## {found.name.replace('_', ' ').capitalize()}\n")
            parts.append(" ".join(about.split()) + "\n")
            parts.append(_HEAD + "".join(rows))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    FULL_PAGE.write_text(full_page())
