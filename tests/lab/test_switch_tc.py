"""Mirrors of real tc, made and taken away beside filters of others and under traffic."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mirrored import Switch
from support.tc_switch import ASKED, bridged, held, somebodys

from flowcheck.findings.catalog.refused_tc_mirrors import (
    FILTER_OF_OTHERS,
    HIDDEN_BY_FILTER,
    INGRESS_QDISC,
    MONITOR_DOWN,
    MONITOR_HAS_MASTER,
    NO_SUCH_DEVICE,
    SHARED_BLOCK,
    TC_COPIED_ALREADY,
    TC_MONITOR_TAKEN,
    TC_SOURCE_GETS_COPIES,
)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
FRAMES = 60


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    with bridged(tmp_path) as made:
        yield made


def seen_by(switch: Switch, pref: int) -> int:
    """Packets the action of somebody's filter has counted."""
    shown = switch.says("tc -j -s filter show dev p0 ingress")
    (one,) = (
        action
        for shown_one in json.loads(shown)
        if shown_one["pref"] == pref
        for action in shown_one.get("options", {}).get("actions", [])
    )
    return int(one["stats"]["packets"])


def test_twice_is_once_and_no_trace_is_left(switch: Switch) -> None:
    before = held(switch)
    assert switch.verb("apply", *ASKED, "--dry-run")[1]["outcome"] == "would change"
    assert held(switch) == before
    code, told, _ = switch.verb("apply", *ASKED)
    assert (code, told["outcome"]) == (0, "changed")
    made = held(switch)
    assert switch.verb("apply", *ASKED)[1]["outcome"] == "unchanged"
    assert held(switch) == made
    assert switch.verb("remove")[1]["outcome"] == "changed"
    assert switch.verb("remove")[1]["outcome"] == "unchanged"
    assert held(switch) == before


def test_traffic_loses_nothing_where_the_hooks_are_there_already(switch: Switch) -> None:
    """Else what a port sends is dropped while Linux puts its hook on, which is told beforehand."""
    _, told, _ = switch.verb("apply", *ASKED, "--dry-run")
    assert [s["what"] for s in told["steps"] if "dropped for some" in s["what"]] != []  # type: ignore[attr-defined]
    for device in ("p0", "p1"):
        switch.says(f"tc qdisc add dev {device} clsact")
    with switch.streaming():
        for verb, words in (
            ("apply", ASKED),
            ("apply", ("--source", "p1:tx", "--monitor", "mon0")),
            ("remove", ()),
        ):
            assert switch.verb(verb, *words)[1]["outcome"] == "changed"


@pytest.mark.nightly
def test_the_hook_stays_where_that_is_asked(switch: Switch) -> None:
    assert switch.verb("apply", "--source", "p0", "--monitor", "mon0")[0] == 0
    assert switch.verb("remove", "--keep-hook")[0] == 0
    assert '"clsact"' in held(switch)
    assert switch.verb("remove")[0] == 0
    assert '"clsact"' not in held(switch)


def test_each_frame_comes_once_from_each_place_that_is_watched(switch: Switch) -> None:
    """A frame of p0's server is seen at p0:rx; one to it at p1:rx and at p0:tx."""
    assert switch.verb("apply", *ASKED)[::2] == (0, "")
    sent, back = switch.frames(0, range(FRAMES)), switch.frames(1, range(FRAMES, 2 * FRAMES))
    copies = switch.copied([(0, sent), (1, back)], 3 * FRAMES)
    assert Counter(copies) == Counter(sent) + Counter(back) + Counter(back)


def test_filters_of_others_before_and_behind_ours_go_on_counting(switch: Switch) -> None:
    switch.run("tc", "qdisc", "add", "dev", "p0", "clsact")
    somebodys(switch, 1, "continue")
    somebodys(switch, 49152, "pipe")
    somebodys(switch, 7, "pipe", "egress")
    before = held(switch)
    assert switch.verb("apply", *ASKED)[::2] == (0, "")
    sent = switch.frames(0, range(FRAMES))
    assert Counter(switch.copied([(0, sent)], FRAMES)) == Counter(sent)
    assert (seen_by(switch, 1), seen_by(switch, 49152)) == (FRAMES, FRAMES)
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before
    switch.copied([(0, sent)], 0)
    assert (seen_by(switch, 1), seen_by(switch, 49152)) == (2 * FRAMES, 2 * FRAMES)


@pytest.mark.nightly
def test_what_cannot_work_or_would_harm_is_refused(switch: Switch) -> None:
    def refused(sentence: str, *words: str) -> None:
        code, _, err = switch.verb("apply", *(words or ASKED))
        assert code == 2, err
        assert sentence in err

    before = held(switch)
    refused(str(NO_SUCH_DEVICE()), "--source", "p7", "--monitor", "mon0")
    refused(str(MONITOR_HAS_MASTER("br0")), "--source", "p0", "--monitor", "p1")
    switch.run("ip", "link", "set", "other", "mtu", "1500")
    refused("MTU of 1500 bytes is below", "--source", "p0", "--monitor", "other")
    switch.run("ip", "link", "set", "other", "mtu", "9000", "down")
    refused(str(MONITOR_DOWN("other")), "--source", "p0", "--monitor", "other")
    switch.says("ip address add 10.99.0.1/24 dev other")
    refused("has an address (10.99.0.1", "--source", "p0", "--monitor", "other")
    switch.says("ip address flush dev other")
    switch.says("ip link set other up")
    assert held(switch) == before
    switch.run("tc", "qdisc", "add", "dev", "p0", "ingress")
    refused(str(INGRESS_QDISC()))
    before = held(switch)
    assert switch.verb("apply", "--source", "p0", "--monitor", "mon0")[0] == 0
    sent = switch.frames(0, range(FRAMES))
    assert Counter(switch.copied([(0, sent)], FRAMES)) == Counter(sent)
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before
    switch.run("tc", "qdisc", "del", "dev", "p0", "ingress")
    switch.run("tc", "qdisc", "add", "dev", "p0", "clsact")
    somebodys(switch, 1, "pipe")
    refused(str(HIDDEN_BY_FILTER(device="p0", way="ingress", pref=1)))
    place = {"maker": FILTER_OF_OTHERS(1), "device": "p0", "way": "ingress"}
    refused(str(TC_COPIED_ALREADY(**place)), "--source", "p0", "--monitor", "other")
    refused(str(TC_SOURCE_GETS_COPIES(**place)), "--source", "other", "--monitor", "mon0")
    assert switch.verb("apply", "--source", "p1", "--monitor", "mon0", "--session", "b")[0] == 0
    refused(str(TC_MONITOR_TAKEN(**place)), "--source", "p1", "--monitor", "other")
    whose = "a filter of FlowCheck's session b"
    refused(whose, "--source", "mon0", "--monitor", "other", "--session", "c")
    refused(whose, "--source", "p1", "--monitor", "mon0", "--session", "c")
    assert switch.verb("remove", "--session", "b")[0] == 0
    switch.says("tc qdisc add dev p1 ingress_block 5 clsact")
    refused(str(SHARED_BLOCK()), "--source", "p1", "--monitor", "mon0")


@pytest.mark.nightly
def test_a_monitor_that_went_and_came_back_is_not_the_one_copies_go_to(switch: Switch) -> None:
    make = "ip link add spare mtu 9000 type veth peer name far mtu 9000"
    for _ in range(2):
        switch.says(make)
        for device in ("spare", "far"):
            switch.run("ip", "link", "set", device, "up")
        asked = ("--source", "p0", "--monitor", "spare")
        assert switch.verb("apply", *asked)[1]["outcome"] == "changed"
        assert switch.verb("apply", *asked)[1]["outcome"] == "unchanged"
        switch.run("ip", "link", "del", "spare")
    assert switch.verb("apply", *asked)[0] == 2
    assert switch.verb("remove")[1]["outcome"] == "changed"
