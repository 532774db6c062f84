"""Mirrors of real tc, made and taken away beside filters of others and under traffic."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mirrored import Switch, dying

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.mirror import stop_copies

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
ASKED = ("--source", "p0:both", "--source", "p1", "--monitor", "mon0")
FRAMES = 60
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    """A Linux bridge with ports p0 and p1 and no mirror; another device `other`."""
    cluster = lab.Cluster(name=f"s{os.getpid()}", mirrors=lab.parse_mirrors(["p0:rx"]))
    try:
        lab.up(cluster)
        stop_copies(cluster)
        made = Switch(cluster, tmp_path / "journal", ["--os", "tc"])
        made.says("ip link add other mtu 9000 type veth peer name beyond mtu 9000")
        for device in ("other", "beyond"):
            made.run("ip", "link", "set", device, "up")
        yield made
    finally:
        lab.down(cluster.name)


def held(switch: Switch) -> str:
    """Every qdisc, chain and filter, as tc's own JSON."""
    shown = [switch.run("tc", "-j", "qdisc", "show")]
    hooked = {one["dev"] for one in json.loads(shown[0]) if one["kind"] in ("clsact", "ingress")}
    for device in sorted(hooked):
        for what in ("chain", "filter"):
            for way in ("ingress", "egress"):
                shown.append(switch.run("tc", "-j", what, "show", "dev", device, way))
    return "\n".join(shown)


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


def somebodys(switch: Switch, pref: int, control: str, way: str = "ingress") -> None:
    """A filter that is not ours, with a copy to somebody's own device."""
    switch.run(
        *f"tc filter add dev p0 {way} protocol all pref {pref} u32 match u32 0 0".split(),
        *f"action mirred egress mirror dev other {control} cookie aa".split(),
    )


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


@pytest.mark.parametrize(
    "call", [pytest.param(n, marks=NIGHTLY) if n != 4 else n for n in range(1, 6)]
)
def test_killed_in_the_middle_the_next_apply_and_remove_mend_it(
    switch: Switch, tmp_path: Path, call: int
) -> None:
    before = held(switch)
    path = dying(tmp_path, "tc", " add ", call, "kill -9 $PPID; exit 1")
    code, _ = switch.apart("apply", *ASKED, path=path)
    assert code == -9
    if call % 2:
        assert switch.verb("apply", *ASKED)[1]["outcome"] == "changed"
        assert switch.verb("apply", *ASKED)[1]["outcome"] == "unchanged"
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before


@pytest.mark.parametrize(
    "call", [pytest.param(n, marks=NIGHTLY) if n != 4 else n for n in range(1, 7)]
)
def test_killed_while_removing_the_next_remove_ends_it(
    switch: Switch, tmp_path: Path, call: int
) -> None:
    switch.run("tc", "qdisc", "add", "dev", "p0", "clsact")
    somebodys(switch, 7, "pipe", "egress")
    before = held(switch)
    assert switch.verb("apply", *ASKED)[::2] == (0, "")
    path = dying(tmp_path, "tc", " del ", call, "kill -9 $PPID; exit 1")
    assert switch.apart("remove", path=path)[0] == -9
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before


@pytest.mark.parametrize("call", [3, *(pytest.param(n, marks=NIGHTLY) for n in (1, 5))])
def test_what_fails_in_the_middle_is_undone(switch: Switch, tmp_path: Path, call: int) -> None:
    before = held(switch)
    path = dying(tmp_path, "tc", " add ", call, "echo Error: no room >&2; exit 2")
    code, told = switch.apart("apply", *ASKED, path=path)
    assert code == 1
    assert "no room" in told
    assert held(switch) == before


@pytest.mark.nightly
def test_what_cannot_be_undone_is_said_with_the_commands(switch: Switch, tmp_path: Path) -> None:
    before = held(switch)
    first = dying(tmp_path, "tc", " add ", 4, "echo Error: no room >&2; exit 2")
    text = (first / "tc").read_text().replace("esac", '*" del "*) exit 2;;\nesac')
    (first / "tc").write_text(text)
    code, told = switch.apart("apply", *ASKED, path=first)
    assert code == 2
    commands = [
        line for line in told.splitlines() if line.startswith("    tc ") and " del " in line
    ]
    assert commands
    for command in commands:
        subprocess.run(
            ["ip", "netns", "exec", switch.cluster.switch_namespace, *command.split()], check=False
        )
    assert held(switch) == before


@pytest.mark.nightly
def test_what_cannot_work_or_would_harm_is_refused(switch: Switch) -> None:
    def refused(sentence: str, *words: str) -> None:
        code, _, err = switch.verb("apply", *(words or ASKED))
        assert code == 2, err
        assert sentence in err

    before = held(switch)
    refused("no device", "--source", "p7", "--monitor", "mon0")
    refused("belongs to br0", "--source", "p0", "--monitor", "p1")
    switch.run("ip", "link", "set", "other", "mtu", "1500")
    refused("MTU of 1500", "--source", "p0", "--monitor", "other")
    switch.run("ip", "link", "set", "other", "mtu", "9000", "down")
    refused("is down", "--source", "p0", "--monitor", "other")
    switch.says("ip address add 10.99.0.1/24 dev other")
    refused("10.99.0.1", "--source", "p0", "--monitor", "other")
    switch.says("ip address flush dev other")
    switch.says("ip link set other up")
    assert held(switch) == before
    switch.run("tc", "qdisc", "add", "dev", "p0", "ingress")
    refused("there is no egress")
    before = held(switch)
    assert switch.verb("apply", "--source", "p0", "--monitor", "mon0")[0] == 0
    sent = switch.frames(0, range(FRAMES))
    assert Counter(switch.copied([(0, sent)], FRAMES)) == Counter(sent)
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before
    switch.run("tc", "qdisc", "del", "dev", "p0", "ingress")
    switch.run("tc", "qdisc", "add", "dev", "p0", "clsact")
    somebodys(switch, 1, "pipe")
    refused("at pref 1 that decides")
    refused("would come twice", "--source", "p0", "--monitor", "other")
    refused("not ours (pref 1) on p0 ingress copies", "--source", "other", "--monitor", "mon0")
    assert switch.verb("apply", "--source", "p1", "--monitor", "mon0", "--session", "b")[0] == 0
    whose = "a filter of session b of FlowCheck's"
    refused(whose, "--source", "mon0", "--monitor", "other", "--session", "c")
    refused(whose, "--source", "p1", "--monitor", "mon0", "--session", "c")
    assert switch.verb("remove", "--session", "b")[0] == 0
    switch.says("tc qdisc add dev p1 ingress_block 5 clsact")
    refused("a block it shares", "--source", "p1", "--monitor", "mon0")


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
