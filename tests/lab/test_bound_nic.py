"""A NIC given to DPDK by a real kernel, with an IOMMU and without, in a virtual machine that needs
no KVM. To boot takes 40 s of a processor's time, a script in Python 10 to 30 s."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from support.node.guest import MONITOR, UPLINK, Guest
from support.node.image import missing
from support.rxe.image import REPOSITORY, kernel

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
PREFIX = Path(sys.prefix)
HERE = f"cd {REPOSITORY}; export PATH={PREFIX}/bin:$PATH;"
PYTHON_S = 900
"""For a script in Python under emulation, on a machine that does other things too."""


@pytest.fixture(scope="module", params=[True, False], ids=["iommu", "no iommu"])
def guest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    of = kernel()
    assert of is not None
    machine = Guest(tmp_path_factory.mktemp("guest"), iommu=request.param)
    try:
        machine.start(of)
        machine.ask("modprobe e1000e && modprobe vmxnet3 && udevadm settle -t 300", 400)
        yield machine
    finally:
        machine.stop()


def interface(guest: Guest, nic: str) -> str:
    return guest.ask(f"ls /sys/bus/pci/devices/{nic}/net 2>/dev/null || true").strip()


def driver(guest: Guest, nic: str) -> str:
    return guest.ask(f"basename $(readlink /sys/bus/pci/devices/{nic}/driver)").strip()


def test_a_nic_goes_and_comes_back_with_its_name(guest: Guest) -> None:
    """Bound twice, undone twice; without an IOMMU only where it is asked for. The kernel's default
    driver is vfio-pci, and uio_pci_generic where its vfio wants an IOMMU."""
    name, uplink = interface(guest, MONITOR), interface(guest, UPLINK)
    mac = guest.ask(f"cat /sys/class/net/{name}/address")
    guest.ask(f"ip address add 10.9.0.2/24 dev {uplink} && ip link set {uplink} up")
    guest.ask(f"ip route add default via 10.9.0.1 dev {uplink}")
    code, said = guest.try_(f"{HERE} scripts/bind-nic bind {UPLINK}", PYTHON_S)
    assert code == 2 and f"{uplink} holds the default route" in said
    bind = f"{HERE} scripts/bind-nic bind {MONITOR}"
    if not guest.iommu:
        code, said = guest.try_(bind, PYTHON_S)
        assert code == 2 and "--no-iommu" in said and driver(guest, MONITOR) == "e1000e"
        bind += " --no-iommu"
    guest.ask(bind, PYTHON_S)
    assert interface(guest, MONITOR) == ""
    unsafe = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
    alone = not guest.iommu and guest.try_(f"test -e {unsafe}")[0]
    assert driver(guest, MONITOR) == ("uio_pci_generic" if alone else "vfio-pci")
    assert " already" in guest.ask(bind, PYTHON_S)
    undo = f"{HERE} scripts/bind-nic undo {MONITOR} && udevadm settle -t 300"
    guest.ask(undo, PYTHON_S)
    assert driver(guest, MONITOR) == "e1000e" and interface(guest, MONITOR) == name
    assert guest.ask(f"cat /sys/class/net/{name}/address") == mac
    assert "nothing was changed" in guest.ask(undo, PYTHON_S)
    assert guest.ask(f"cat /sys/bus/pci/devices/{MONITOR}/driver_override").strip() == "(null)"


def test_pages_are_reserved_and_given_back(guest: Guest) -> None:
    count = "cat /proc/sys/vm/nr_hugepages"
    before = guest.ask(count)
    for _ in range(2):
        guest.ask(f"{HERE} scripts/hugepages reserve 64")
        assert guest.ask(count) == "64\n"
    for _ in range(2):
        guest.ask(f"{HERE} scripts/hugepages undo")
        assert guest.ask(count) == before


def test_frames_come_through_dpdk_s_own_driver_of_the_nic(guest: Guest) -> None:
    """A job's frames as a mirror gives them, each once, in order, byte for byte."""
    frames = [wire.frame for wire in make_traffic(SyntheticJob()).frames_at_port(0)]
    more = "" if guest.iommu else " --no-iommu"
    guest.ask(f"{HERE} scripts/bind-nic bind {MONITOR}{more}", PYTHON_S)
    guest.ask(f"{HERE} scripts/hugepages reserve 128")
    paths = f"PYTHONPATH={REPOSITORY}:{REPOSITORY}/tests"
    take = f"{paths} python {REPOSITORY}/tests/support/node/take.py {MONITOR} {len(frames)}"
    guest.ask(f"{HERE} ({take} > /tmp/taken 2>&1 &)")
    wait_for(guest, "grep -qE 'ready|rror' /tmp/taken")
    guest.send(MONITOR, frames)
    wait_for(guest, "grep -qE 'sha256|rror' /tmp/taken")
    said = guest.ask("cat /tmp/taken").splitlines()
    assert said[0] == "ready", said
    found = json.loads(said[1]) | json.loads(said[2])
    assert "em" in found["driver"] and found["promiscuous"] and found["huge_pages"], found
    assert found["sha256"] == [sha256(frame).hexdigest() for frame in frames]
    guest.ask(f"{HERE} scripts/bind-nic undo {MONITOR}", PYTHON_S)
    guest.ask(f"{HERE} scripts/hugepages undo")


def wait_for(guest: Guest, line: str) -> None:
    """Until the line of bash says 0; each look takes time from what is waited for."""
    until = time.monotonic() + PYTHON_S
    while guest.try_(line)[0]:
        assert time.monotonic() < until, guest.ask("cat /tmp/taken")
        time.sleep(5)
