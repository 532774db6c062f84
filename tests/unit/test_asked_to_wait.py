"""How long a server asks to be left alone, whatever it writes there: a time within bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from flowcheck.vault.download.download_source import WAIT_MAX_S, WAIT_MIN_S, retry_after_s

STATED = (
    *("3", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "", "\0", "soon"),
    *(
        f"{day} {year:04} {clock} {zone}"
        for day, clock in (("Fri, 31 Dec", "23:59:59"), ("Mon, 01 Jan", "00:00:00"))
        for year in (1, 1969, 2024, 9999)
        for zone in ("GMT", "-0000", "+2359", "-2359")
    ),
)


@pytest.fixture(params=["UTC0", "JST-9", "EST5"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A date with -0000 is local time (RFC 5322, 3.3)."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("stated", STATED)
def test_a_wait_is_within_bounds(stated: str) -> None:
    assert WAIT_MIN_S <= retry_after_s(stated) <= WAIT_MAX_S
