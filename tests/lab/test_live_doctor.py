"""The mirror doctor at interfaces: judged by what a raw socket sent, and by what the kernel says of
the interface and of shared memory when it has ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapNgReader, RawPcapWriter
from support.eal import wait_until, why_not
from support.live import greetings, start
from support.veth import SEND, Veth, veth

from flowcheck.closing_context import Closeable
from flowcheck.ops.mirror_doctor.capturing_chains import CapturingChain
from flowcheck.ops.mirror_doctor.chain_watch import ChainWatch
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind
from flowcheck.private_files import trust_user
from flowcheck.stages.run_directory.run_dir import RunDir

WHY_NOT = why_not() or ("" if shutil.which("ip") else "ip (iproute2) is not installed")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "lab is there")]

PAIRS = 4
LIMIT_S = 60


@pytest.fixture(scope="module")
def cable() -> Iterator[Veth]:
    """Four pairs: out0 to tap0, and so on."""
    with veth() as made:
        for number in range(1, PAIRS):
            names = (f"out{number}", f"tap{number}")
            made.run("ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
            for name in names:
                made.run("sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
                made.run("ip", "link", "set", name, "mtu", "9000", "arp", "off", "up")
        yield made


@pytest.fixture(scope="module")
def real(captures: Path) -> list[bytes]:
    with RawPcapNgReader(str(captures / "allreduce+partial_p2p.pcapng")) as reader:
        return [data for data, _ in reader]


FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[1])
import send
while True:
    send.main("out3", sys.argv[2], 16)
"""


class Doctor(Closeable):
    """`flowcheck doctor --live` in the cable's namespace, watching from the first moment on."""

    def __init__(self, cable: Veth, *ports: str) -> None:
        named = [word for port in ports for word in ("--live", port)]
        inside = ["ip", "netns", "exec", cable.namespace, sys.executable, "-m", "flowcheck"]
        before = sockets(cable)
        self.process = subprocess.Popen(
            [*inside, "doctor", *named, "--seconds", str(LIMIT_S), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        # The last socket takes frames of all protocols once the others are open.
        watching = wait_until(
            lambda: (
                all(promiscuity(cable, port) for port in ports)
                and sockets(cable) >= len(ports) + before
            )
        )
        if not watching:
            self.close()
        assert watching, "it does not watch"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=LIMIT_S)

    def ended(self) -> tuple[int, dict[str, Any]]:
        """(exit code, report) behind Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert not err, err
        return self.process.returncode, json.loads(out or "{}")


def promiscuity(cable: Veth, port: str) -> int:
    (shown,) = json.loads(cable.run("ip", "-j", "-d", "link", "show", port))
    return int(shown["promiscuity"])


def sockets(cable: Veth) -> int:
    """Packet sockets that are bound to an interface and take frames of all protocols (ETH_P_ALL,
    3)."""
    rows = [row.split() for row in cable.run("cat", "/proc/net/packet").splitlines()[1:]]
    return sum(row[3] == "0003" and row[4] != "0" for row in rows)


def left_behind() -> set[str]:
    places = (Path("/dev/shm"), Path("/tmp"))
    kinds = ("flowcheck-doctor-*", "flowcheck-dpdk-*")
    return {str(one) for place in places for kind in kinds for one in place.glob(kind)}


def write(path: Path, frames: Sequence[bytes]) -> Path:
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame)
    return path


def send(cable: Veth, folder: Path, out: str, frames: Sequence[bytes]) -> None:
    path = write(folder / f"{out}.pcap", frames)
    name, cable.out = cable.out, out
    try:
        cable.send(path)
    finally:
        cable.out = name


def codes(port: dict[str, Any], level: str = "fail") -> set[str]:
    return {line["found"]["code"] for line in port["checks"] if line["level"] == level}


def test_ports_are_told_what_was_sent_to_each(
    cable: Veth, tmp_path: Path, real: list[bytes]
) -> None:
    """One gets all frames, one gets each twice and cut, the third gets nothing. A fourth one gets
    frames all the time: a packet socket that is not bound yet takes those too, as DPDK starts."""
    before = left_behind()
    inside = ["ip", "netns", "exec", cable.namespace, sys.executable, "-c", FOR_EVER]
    path = write(tmp_path / "other.pcap", real)
    sender = subprocess.Popen([*inside, str(SEND.parent), str(path)])
    try:
        with Doctor(cable, "tap0", "tap1", "tap2") as doctor:
            send(cable, tmp_path, "out0", real)
            send(cable, tmp_path, "out1", [frame[:200] for frame in real for _ in range(2)])
            code, told = doctor.ended()
        assert sender.poll() is None
    finally:
        sender.kill()
        sender.wait(LIMIT_S)
    whole, cut, silent = told["ports"]
    assert code == 1 and told["usable"] is False
    assert whole["frames"] == len(real) and codes(whole) == set()
    assert whole["load"]["bytes"] == sum(map(len, real))
    assert whole["speed_mbps"] == int(cable.run("cat", "/sys/class/net/tap0/speed"))
    assert cut["frames"] == 2 * len(real) and not cut["capture_losses"]
    assert "mirror_port.truncated" in codes(cut) and cut["cut_bytes"] == 200
    assert (silent["frames"], codes(silent)) == (0, {"mirror_port.no_frame"})
    assert [promiscuity(cable, f"tap{n}") for n in range(PAIRS)] == [0] * PAIRS
    assert wait_until(lambda: left_behind() <= before)


def test_a_killed_doctor_leaves_nothing(cable: Veth) -> None:
    before = left_behind()
    with Doctor(cable, "tap0") as doctor:
        assert promiscuity(cable, "tap0") == 1
        assert wait_until(lambda: left_behind() <= before), "DPDK has started"
        doctor.process.kill()
        doctor.process.communicate(timeout=LIMIT_S)
    assert wait_until(lambda: promiscuity(cable, "tap0") == 0)
    assert wait_until(lambda: left_behind() <= before)


@pytest.mark.nightly
def test_beside_a_chain_each_has_every_frame(
    cable: Veth, tmp_path: Path, real: list[bytes]
) -> None:
    run = RunDir(tmp_path / "run")
    chain = start(cable, tmp_path)
    try:
        assert wait_until(lambda: greetings(run, "capture-0") > 0 and sockets(cable) > 0)
        trust_user(run.root.stat().st_uid)
        source = run.settings().source[0]
        seen = ChainWatch(NamedPort(cable.tap, PortKind.PCI), CapturingChain(run.root, 0, source))
        with Doctor(cable, cable.tap) as doctor:
            send(cable, tmp_path, "out0", real)
            arrived = wait_until(lambda: seen.figures(1.0).frames >= len(real))
            code, told = doctor.ended()
        assert arrived and chain.poll() is None
        (port,) = told["ports"]
        assert code == 0 and port["frames"] == len(real)
        assert (port["chain"], port["chain_losses"]) == (str(run.root), {})
        assert "mirror_port.chain_beside" in codes(port, "ok")
        read = seen.figures(1.0)
        assert read.verdicts == port["verdicts"] and read.from_chain
        sent = {(link["source"], link["destination"]): link for link in port["links"]}
        assert {(one.source, one.destination): one.data_bytes for one in read.links} == {
            at: link["data_bytes"] for at, link in sent.items()
        }
    finally:
        chain.send_signal(signal.SIGINT)
        chain.communicate(timeout=LIMIT_S)
    assert os.path.lexists(run.root)
