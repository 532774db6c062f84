"""A NIC the machine lives by, and real-time priority: what the doctor says of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import by_name, healthy_server, interface, pci, put

from flowcheck.findings.catalog.machine_settings import PORT_OF

ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
DEFAULT = "00000000 010200C0 0003 0 0 0 00000000 0 0 0\n"
LIMITS = "Limit Soft Limit Hard Limit Units\nMax realtime priority     {}                    0\n"
NIC = "0000:3b:00.1"


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return healthy_server(tmp_path)


@pytest.mark.parametrize("driver", ["ice", "strange"])
def test_a_nic_this_machine_lives_by_is_never_advised_to_be_taken_away(
    healthy: Path, driver: str
) -> None:
    ids = (0x8086, 0x1592) if driver == "ice" else (0x1234, 0x5678)
    pci(healthy, NIC, ids, 0x020000, driver)
    interface(healthy, NIC, "eno1")
    put(healthy / "proc/net/route", f"{ROUTES}eno1 {DEFAULT}")
    found = by_name(healthy)
    assert found[NIC].level == "ok" and found[NIC].advice is None
    assert "eno1 holds the default route" in str(found[NIC].found)
    assert "NIC" not in found, "another one is there for the mirror"


@pytest.mark.parametrize(
    ("file", "line", "what"),
    [
        ("route", f"{ROUTES}eno1 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n", "has an address"),
        ("if_inet6", f"fd{30 * '0'} 04 40 00 82 eno1\n", "has an address"),
        ("if_inet6", f"fe80{28 * '0'} 04 40 20 80 eno1\n", ""),
        ("ipv6_route", f"{32 * '0'} 00 {32 * '0'} 00 fd 0400 2 0 03 eno1\n", "default route"),
        ("ipv6_route", f"{32 * '0'} 00 {32 * '0'} 00 fd 0400 2 0 03 lo\n", ""),
    ],
)
def test_addresses_and_routes_of_either_version_count_but_link_local_ones(
    healthy: Path, file: str, line: str, what: str
) -> None:
    pci(healthy, NIC, (0x8086, 0x1592), 0x020000, "ice")
    interface(healthy, NIC, "eno1")
    put(healthy / "proc/net" / file, line)
    found = by_name(healthy)[NIC]
    assert (found.level == "ok") == bool(what) and what in str(found.found)
    if not what:
        assert "eno1 is up, without an address" in str(found.found)
        assert "`ip link set eno1 down` and `scripts/bind-nic" in str(found.advice)


def test_a_port_of_a_bond_and_one_that_carries_a_vlan_are_in_use(healthy: Path) -> None:
    for number, name in enumerate(("eno1", "eno2"), 1):
        pci(healthy, f"0000:3b:00.{number}", (0x8086, 0x1592), 0x020000, "ice")
        interface(healthy, f"0000:3b:00.{number}", name)
    folder = healthy / "sys/class/net"
    for name in ("bond0", "eno2.7"):
        (folder / name).mkdir()
    for link in ("master", "upper_bond0"):
        (folder / "eno1" / link).symlink_to("../bond0")
    (folder / "eno2/upper_eno2.7").symlink_to("../eno2.7")
    found = by_name(healthy)
    reasons = found["0000:3b:00.1"].found.arguments["reasons"]
    assert isinstance(reasons, tuple) and reasons == (PORT_OF(interface="eno1", bridge="bond0"),)
    assert "eno1 is a port of bond0: this" in str(found["0000:3b:00.1"].found)
    assert "eno2 carries eno2.7: this" in str(found["0000:3b:00.2"].found)


def test_several_reasons_stand_between_commas(healthy: Path) -> None:
    pci(healthy, NIC, (0x8086, 0x1592), 0x020000, "ice")
    for name in ("eno1", "eno2"):
        interface(healthy, NIC, name)
    put(healthy / "proc/net/route", f"{ROUTES}eno1 {DEFAULT}eno2 {DEFAULT}")
    assert str(by_name(healthy)[NIC].found) == (
        "8086:1592, bound to ice, NUMA node 1; eno1 holds the default route, eno2 holds the "
        "default route: this machine needs it, it is no capture port"
    )


def test_an_interface_that_is_down_is_free(healthy: Path) -> None:
    pci(healthy, NIC, (0x8086, 0x1592), 0x020000, "ice")
    interface(healthy, NIC, "eno1", up=False)
    assert "is up" not in str(by_name(healthy)[NIC].found)


def test_a_machine_that_needs_its_only_nic_needs_another_and_no_iommu_for_it(
    healthy: Path,
) -> None:
    shutil.rmtree(healthy / "sys/bus/pci/devices/0000:3b:00.0")
    shutil.rmtree(healthy / "sys/kernel/iommu_groups/0")
    pci(healthy, "0000:00:03.0", (0x8086, 0x1592), 0x020000, "ice")
    # As virtio has it: a bus of its own between the device and the interface.
    (healthy / "sys/bus/pci/devices/0000:00:03.0/virtio2/net/eth0").mkdir(parents=True)
    put(healthy / "sys/class/net/eth0/flags", "0x1003\n")
    put(healthy / "proc/net/route", f"{ROUTES}eth0 {DEFAULT}")
    found = by_name(healthy)
    assert found["NIC"].level == "warn" and "a port nothing else uses" in str(found["NIC"].advice)
    assert found["IOMMU/VFIO"].level == "ok"


@pytest.mark.parametrize(
    ("rights", "limit", "level"),
    [
        ("0000000000800000", "0", "ok"),
        ("0000000000000000", "1", "ok"),
        ("0000000000000000", "unlimited", "ok"),
        ("0000000000002000", "0", "warn"),
    ],
)
def test_whether_capture_may_run_before_other_work_is_told(
    healthy: Path, rights: str, limit: str, level: str
) -> None:
    put(healthy / "proc/self/status", f"CapEff:\t{rights}\n")
    put(healthy / "proc/self/limits", LIMITS.format(limit))
    found = by_name(healthy)["priority"]
    assert found.level == level
    assert level == "ok" or "CAP_SYS_NICE" in str(found.advice)


ASKED = """
import os, threading
from pathlib import Path
from flowcheck.ops.node import machine_checks
from flowcheck.stages.packet_capture.capture_stage import raise_thread_priority
got = []
def ask():
    raise_thread_priority()
    got.append(os.sched_getscheduler(0) == os.SCHED_RR)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(got[0], machine_checks.check_real_time(Path("/")).level == "ok")
"""


def test_what_is_told_of_priority_comes_true_on_this_machine() -> None:
    commands = [[sys.executable, "-c", ASKED]]
    if os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("prlimit"):
        without = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
        commands.append(["prlimit", "--rtprio=0", *without, *commands[0]])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split() in (["True", "True"], ["False", "False"])
    if len(commands) == 2:
        assert done.stdout.split() == ["False", "False"], "the right was not taken away"
