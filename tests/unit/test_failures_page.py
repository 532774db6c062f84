"""The page of failures quotes what FlowCheck says: each sentence is one that it can say."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from flowcheck.plane.shared_memory.packet_counters import FLOW_TABLE_FULL, LOSS_COUNTERS, VERDICTS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "flowcheck/ops/lifecycle/README.md"
SETTINGS = {"gradient_log"}
QUOTED = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def sentences() -> list[str]:
    return QUOTED.findall(PAGE.read_text())


def literals(tree: ast.AST) -> list[str]:
    """Every string of a source, what is filled in told by a NUL."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "\0" for v in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


@cache
def said() -> str:
    """All that the sources can say; markup of colours is nothing that is read."""
    sources = (path for path in (REPOSITORY / "flowcheck").rglob("*.py") if "lab" not in path.parts)
    texts = [text for path in sources for text in literals(ast.parse(path.read_text()))]
    return re.sub(r"\[/?(?:red|yellow|green|dim|bold)?\]", "", "\n".join(texts))


@pytest.mark.parametrize("sentence", sentences())
def test_what_the_page_quotes_is_said_by_a_source(sentence: str) -> None:
    told = [part for part in sentence.split("…") if part.strip(" ;:.,()")]
    assert told and max(map(len, told)) > 12, "nothing is left of it to look for"
    for part in told:
        known = re.escape(part.strip()).replace(r"\ ", r"[ \0]")
        assert re.search(known, said()), f"no source says {part!r}"


def test_every_counter_that_the_page_names_is_one() -> None:
    words = set(re.findall(r"`([a-z]+_[a-z_]+)`", PAGE.read_text()))
    known = set(LOSS_COUNTERS) | set(VERDICTS) | {FLOW_TABLE_FULL}
    assert {"ring_full_frames", "icrc_bad"} <= words
    assert words - known <= SETTINGS
