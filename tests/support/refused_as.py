"""What an error says, judged by the codes of its findings and not by its words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.found_codes import codes

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.finding import Entry


@contextmanager
def refused_as(
    *entries: Entry, kind: type[FlowCheckError] = StateError, says: str | None = None
) -> Iterator[pytest.ExceptionInfo[FlowCheckError]]:
    """As `pytest.raises`: an error of this kind, which is, or names as its cause, one of the
    entries. says: a pattern that its sentence has beside, of the values in it."""
    with pytest.raises(kind, match=says) as caught:
        yield caught
    found = codes([caught.value.finding])
    assert found & {entry.code for entry in entries}, found
