"""Mirrors of a real Open vSwitch, made and taken away beside others' and under traffic."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cabling import Tap
from support.mirrored import Switch, dying
from support.switches import NEEDS_OVS, ONE_OVS_AT_A_TIME

from flowcheck.findings.catalog.refused_ovs_mirrors import (
    MADE_BY_OTHERS,
    MONITOR_CUTS_TAGS,
    MONITOR_INTERNAL,
    NO_SUCH_BRIDGE,
    NO_SUCH_OVS_PORT,
    OVS_NAME_TAKEN,
    OVS_OUTPUT_TAKEN,
    OVS_SOURCE_IS_OUTPUT,
    PORT_ON_OTHER_BRIDGE,
)
from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.cluster_state_file import folder_of

pytestmark = [
    pytest.mark.lab,
    NEEDS_OVS,
    ONE_OVS_AT_A_TIME,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
BRIDGE = ("--bridge", "br0")
ASKED = (*BRIDGE, "--source", "p0:both", "--source", "p1", "--monitor", "mon0")
FRAMES = 40
VSCTL = shutil.which("ovs-vsctl")
DIES = "kill -9 $PPID; exit 1"
TABLES = ("Bridge", "Port", "Interface", "Mirror", "Open_vSwitch")
MOVING = {"statistics", "status", "cur_cfg", "next_cfg", "link_resets"}
"""Columns the daemon writes by itself; cur_cfg and next_cfg count transactions."""


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    """Open vSwitch with br0, its ports p0, p1, mon0 and `other`, and a mirror of somebody's: what
    p1 receives, to `other`."""
    cluster = lab.Cluster(
        name=f"o{os.getpid()}", switch="ovs", mirrors=lab.parse_mirrors(["p1:rx"])
    )
    try:
        lab.up(cluster)
        database = f"unix:{folder_of(cluster.name)}/db.sock"
        made = Switch(cluster, tmp_path, ["--os", "openvswitch", "--db", database])
        made.says("ip link add other type veth peer name beyond")
        made.says("ip link set other up")
        vsctl(made, "add-port br0 other -- --id=@o get port other -- set mirror m0 output-port=@o")
        yield made
    finally:
        lab.down(cluster.name)


def vsctl(switch: Switch, words: str) -> str:
    """Of somebody else's."""
    database = f"unix:{folder_of(switch.cluster.name)}/db.sock"
    return switch.says(f"ovs-vsctl --db={database} --timeout=10 {words}")


def held(switch: Switch) -> dict[str, list[str]]:
    """Every row as ovs-vsctl's JSON has it, without what the daemon writes by itself."""
    tables = {}
    for table in TABLES:
        shown = json.loads(vsctl(switch, f"-f json list {table}"))
        keys = shown["headings"]
        tables[table] = sorted(
            json.dumps([cell for key, cell in zip(keys, row, strict=True) if key not in MOVING])
            for row in shown["data"]
        )
    return tables


def counted(switch: Switch, mirror: str) -> int:
    """Packets it has copied, by the daemon's own counter; it writes it every few seconds."""
    return int(vsctl(switch, f"get mirror {mirror} statistics:tx_packets"))


def test_twice_is_once_each_frame_once_and_no_trace_is_left(switch: Switch) -> None:
    before = held(switch)
    assert switch.verb("apply", *ASKED, "--dry-run")[1]["outcome"] == "would change"
    assert held(switch) == before
    with switch.streaming():
        code, told, err = switch.verb("apply", *ASKED)
        assert (code, told.get("outcome")) == (0, "changed"), err
        made = held(switch)
        assert len(made["Mirror"]) == 2
        assert switch.verb("apply", *ASKED)[1]["outcome"] == "unchanged"
        assert held(switch) == made
        with Tap(switch.cluster.checkpoint_namespace) as monitor:
            assert monitor.socket.recv(1 << 16), "a flow that was in use before is copied"
    sent, back = switch.frames(0, range(FRAMES)), switch.frames(1, range(FRAMES, 2 * FRAMES))
    # One mirror copies a frame once, wherever it sees it (ofproto-dpif-xlate.c, mirror_packet).
    assert Counter(switch.copied([(0, sent), (1, back)], 2 * FRAMES)) == Counter(sent + back)
    with switch.streaming():
        assert switch.verb("remove")[1]["outcome"] == "changed"
        with Tap(switch.cluster.checkpoint_namespace) as monitor:
            assert monitor.received() == []
        assert switch.verb("remove")[1]["outcome"] == "unchanged"
    assert held(switch) == before


@pytest.mark.nightly
def test_what_was_changed_by_hand_is_mended_and_others_go_on_copying(switch: Switch) -> None:
    assert switch.verb("apply", *ASKED)[0] == 0
    vsctl(switch, "set mirror flowcheck snaplen=64 select_dst_port=[]")
    before = counted(switch, "m0")
    code, told, _ = switch.verb("apply", *ASKED)
    assert (code, told["outcome"], len(told["steps"])) == (0, "changed", 1)  # type: ignore[arg-type]
    back = switch.frames(1, range(FRAMES))
    assert Counter(switch.copied([(1, back)], FRAMES)) == Counter(back)
    vsctl(switch, f"wait-until mirror m0 statistics:tx_packets>={before + FRAMES}")
    assert counted(switch, "m0") == before + FRAMES


@pytest.mark.nightly
def test_what_cannot_work_or_would_harm_is_refused(switch: Switch) -> None:
    def refused(sentence: str, *words: str) -> None:
        code, _, err = switch.verb("apply", *(words or ASKED))
        assert code == 2, err
        assert sentence in err

    before = held(switch)
    refused(str(NO_SUCH_BRIDGE(["br0"])), "--bridge", "br9", "--source", "p0", "--monitor", "mon0")
    refused(str(NO_SUCH_OVS_PORT()), *BRIDGE, "--source", "p7", "--monitor", "mon0")
    taken = OVS_OUTPUT_TAKEN(mirror="m0", maker=MADE_BY_OTHERS())
    refused(str(taken), *BRIDGE, "--source", "p0", "--monitor", "other")
    refused(str(MONITOR_INTERNAL()), *BRIDGE, "--source", "p0", "--monitor", "br0")
    refused(str(OVS_SOURCE_IS_OUTPUT("m0")), *BRIDGE, "--source", "other", "--monitor", "mon0")
    refused(str(OVS_NAME_TAKEN(bridge="br0", name="m0")), *ASKED, "--session", "m0")
    refused("reached through it", *BRIDGE, "--source", "p1", "--monitor", "p0")
    assert held(switch) == before
    vsctl(switch, "set port mon0 tag=5")
    refused(str(MONITOR_CUTS_TAGS(column="tag", value=5)))
    vsctl(switch, "clear port mon0 tag -- add-br br2 -- del-port mon0 -- add-port br2 mon0")
    refused(str(PORT_ON_OTHER_BRIDGE(other="br2", bridge="br0")))
    code, _, err = switch.verb("remove", "--session", "m0")
    assert code == 0, err
    assert len(held(switch)["Mirror"]) == 1


@pytest.mark.nightly
def test_killed_before_or_behind_the_transaction_the_next_remove_mends_it(
    switch: Switch, tmp_path: Path
) -> None:
    before = held(switch)
    for call, word in enumerate((DIES, f'{VSCTL} "$@"; {DIES}'), 1):
        (tmp_path / str(call)).mkdir()
        path = dying(tmp_path / str(call), "ovs-vsctl", "create mirror", 1, word)
        code, told = switch.apart("apply", *ASKED, path=path)
        assert code == -signal.SIGKILL, told
        assert len(held(switch)["Mirror"]) == call
        assert switch.verb("remove")[0] == 0
        assert held(switch) == before


@pytest.mark.nightly
def test_a_daemon_that_does_not_take_it_has_it_taken_back(switch: Switch) -> None:
    """ovs-vsctl writes the row and waits for the daemon in vain."""
    before = held(switch)
    (daemon,) = folder_of(switch.cluster.name).glob("ovs-vswitchd.pid")
    os.kill(int(daemon.read_text()), signal.SIGSTOP)
    try:
        code, told, _ = switch.verb("apply", *ASKED)
        assert (code, told["outcome"]) == (1, "undone")
        assert "ovs-vswitchd does not answer" in str(told["why"])
    finally:
        os.kill(int(daemon.read_text()), signal.SIGCONT)
    assert held(switch) == before
