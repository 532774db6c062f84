"""A port without a link, by a made-up sysfs; what is said of it, of a last step, of an end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.refused_as import refused_as
from test_watch_server import recorded

from flowcheck.config import SourceConfig
from flowcheck.config.multi_job_config import check_last
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_health import (
    EXACT,
    NO_FRAME_YET,
    NO_LINK,
    NO_LINK_AND,
    NOT_LEARNED,
    STATED_LAST_STEP,
)
from flowcheck.findings.catalog.refused_settings import LAST_STEP
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.monitoring_server import ScrapeInterval
from flowcheck.ops.watch.state.chain_state import Health, HealthWord, RingState
from flowcheck.ops.watch.state.health_rules import job_health
from flowcheck.stages.chain_events import link_state
from flowcheck.stages.chain_events.link_state import LinkMonitor

S = 10**9
SOURCES = (
    SourceConfig(interface="eth1"),
    SourceConfig(vdev="net_af_packet0,iface=eth2,qpairs=1"),
    SourceConfig(pci="0000:3b:00.0"),
)


def test_a_link_that_goes_is_told_once_and_with_how_long_it_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_state, "NETWORK", tmp_path)
    for name in ("eth1", "eth2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "carrier").write_text("1\n")
    links = LinkMonitor(SOURCES)
    assert links.check(1 * S) == []
    (tmp_path / "eth1" / "carrier").write_text("0\n")
    (tmp_path / "eth2" / "carrier").unlink()
    (tmp_path / "eth2" / "carrier").mkdir()  # of one that is set down no byte can be read
    assert links.check(2 * S) == [(0, "eth1", None), (1, "eth2", None)]
    assert links.check(3 * S) == [] and links.dark_ns == [2 * S, 2 * S, 0]
    (tmp_path / "eth1" / "carrier").write_text("1\n")
    assert links.check(10 * S) == [(0, "eth1", 8.0)]
    monkeypatch.setattr(link_state, "NETWORK", tmp_path / "none")
    assert links.check(12 * S) == [(1, "eth2", 10.0)], "where nothing can tell nothing is said"


def health(*dark_s: float | None, step: int | None = None) -> Health:
    state = recorded()
    ring = state.rings[0]
    rings = [
        msgspec.structs.replace(ring, number=n, source=f"eth{n}", dark_s=one)
        for n, one in enumerate(dark_s)
    ]
    job = msgspec.structs.replace(state.jobs[0], last_step=step)
    return job_health(job, state.stages, rings, sources_ended=False)


def test_a_chain_that_no_frame_reached_says_so() -> None:
    state = recorded()
    silent = msgspec.structs.replace(state.rings[0], head=0, frame_age_s=None, dark_s=None)
    came = msgspec.structs.replace(silent, head=7, frame_age_s=0.5)
    job = msgspec.structs.replace(state.jobs[0], learned=False, step=None, why_not=())

    def reason(*rings: RingState) -> Finding:
        return job_health(job, state.stages, rings, sources_ended=False).reason

    assert reason(silent).is_any_of(NO_FRAME_YET) and reason(silent, silent).is_any_of(NO_FRAME_YET)
    assert reason(silent, came).is_any_of(NOT_LEARNED)
    dark = msgspec.structs.replace(silent, dark_s=3.0)
    assert not reason(dark).is_any_of(NO_FRAME_YET), "that it has no link says more"


def test_without_any_link_a_job_is_stale_and_with_some_it_is_behind() -> None:
    assert health(None, None).word is HealthWord.EXACT
    dark = health(2.0, 3.0)
    assert dark.word is HealthWord.STALE
    assert dark.reason.arguments["no_link"] == NO_LINK(ports=["eth0", "eth1"], seconds=3)
    some = health(None, 3.0)
    assert some.word is HealthWord.BEHIND and some.reason.is_any_of(NO_LINK_AND)
    assert some.reason.arguments["no_link"] == NO_LINK(ports=["eth1"], seconds=3)


def notes_of(told: Health) -> tuple[object, ...]:
    assert told.reason.is_any_of(EXACT)
    notes = told.reason.arguments["notes"]
    assert isinstance(notes, tuple)
    return notes


def test_a_job_whose_last_step_is_taken_is_over_and_no_earlier_one() -> None:
    step = recorded().jobs[0].step
    assert step is not None
    assert STATED_LAST_STEP() in notes_of(health(None, step=step))
    assert STATED_LAST_STEP() not in notes_of(health(None, step=step + 1))
    with refused_as(LAST_STEP, kind=ConfigError, key="last_step"):
        check_last(None, 0)


def test_who_scrapes_often_is_waited_for_until_it_is_told_of_the_end() -> None:
    scrapes = ScrapeInterval()
    assert scrapes.wait_s(0.0) == 0.0, "nobody comes"
    for at_s in (1.0, 2.0, 3.0):
        scrapes.note(over=False, now_s=at_s)
    assert scrapes.wait_s(3.5) == pytest.approx(1.0)
    assert scrapes.wait_s(9.0) == 0.0, "it did not come again"
    scrapes.note(over=True, now_s=4.0)
    assert scrapes.wait_s(4.0) == 0.0
    seldom = ScrapeInterval()
    seldom.note(over=False, now_s=0.0)
    seldom.note(over=False, now_s=15.0)
    assert seldom.wait_s(15.1) == 0.0
