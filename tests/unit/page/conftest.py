"""One Chromium for all tests of the page, a tab for each, and a server of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.chromium import MISSING, PATH, Tab, chromium
from support.shown import Told, recorded, serving

from flowcheck.ops.watch.monitoring_server import MonitoringServer


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Tab]]:
    """Makes tabs; skips where there is no Chromium."""
    if PATH is None:
        pytest.skip(MISSING)
    with chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Callable[[], Tab]) -> Iterator[Tab]:
    tab = browser()
    yield tab
    tab.close()


@pytest.fixture
def told() -> Told:
    return Told(recorded("state-lost.json"))


@pytest.fixture
def server(told: Told) -> Iterator[MonitoringServer]:
    with serving(told) as server:
        yield server
