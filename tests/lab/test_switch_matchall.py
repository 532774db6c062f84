"""tc's matchall form on a kernel that has it, in a virtual machine without a disk."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.rxe.image import Archive, kernel, modules

from flowcheck.ops.switch.apply import tc_commands, tc_state
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal
from flowcheck.ops.switch.apply.tc_mirror import TcMirrors
from flowcheck.ops.switch.apply.tc_state import TcJournal

PROGRAMS = ("qemu-system-x86_64", "busybox", "modprobe", "tc", "ip")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
MODULES = ("veth", "sch_ingress", "cls_matchall", "cls_flower", "act_mirred", "act_gact")
COPY = tc_commands.MirrorFilter(device="va", way="ingress", monitor="vm")
COOKIE = b"flowcheck".hex()
FRAMES = 25
SOMEBODYS = (
    "tc filter add dev va ingress protocol ip pref 6 flower ip_proto icmp action continue",
    "tc filter add dev va ingress protocol ip pref 49152 flower ip_proto icmp action pass",
)
LIMIT_S = 110


def answers(folder: Path, script: list[str]) -> dict[str, str]:
    """What each line that begins with `say NAME` said, by its name."""
    of = kernel()
    if of is None:
        pytest.skip("no kernel in FLOWCHECK_RXE_KERNEL or .venv (scripts/nightly gets one)")
    archive = Archive()
    for empty in ("/proc", "/sys", "/dev"):
        archive.folder(empty)
    archive.file("/bin/busybox", Path(str(shutil.which("busybox"))).resolve().read_bytes())
    for applet in ("sh", "mount", "insmod", "ping", "poweroff", "echo"):
        archive.link(f"/bin/{applet}", "busybox")
    for program in ("ip", "tc"):
        archive.program(Path(str(shutil.which(program))).resolve(), f"/usr/bin/{program}")
    loads = []
    for module in modules(of, MODULES):
        archive.file(f"/modules/{module.name}", module.read_bytes(), 0o644)
        loads.append(f"insmod /modules/{module.name}")
    # busybox would take its own tc and ip for these
    head = ["#!/bin/sh", "mount -t proc proc /proc", 'tc() { /usr/bin/tc "$@"; }']
    head += ['ip() { /usr/bin/ip "$@"; }', 'say() { echo "<$1>"; shift; "$@"; echo \'</>\'; }']
    text = "\n".join([*head, *loads, *script, "poweroff -f", ""])
    archive.file("/init", text.encode())
    (folder / "initramfs").write_bytes(archive.finished())
    machine = ["qemu-system-x86_64", "-cpu", "max", "-m", "512", "-nodefaults", "-no-reboot"]
    machine += ["-display", "none", "-serial", "stdio", "-kernel", str(of.image)]
    machine += ["-initrd", str(folder / "initramfs"), "-append", "console=ttyS0 quiet panic=1"]
    done = subprocess.run(
        machine, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S
    )
    said = done.stdout.decode(errors="replace").replace("\r", "")
    return dict(re.findall(r"<(\w+)>\n(.*?)</>", said, re.DOTALL))


def test_matchall_copies_each_frame_and_leaves_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filters before and behind count the frames that ours copies; the command made from what
    this kernel shows takes ours away, and nothing else."""
    shown: list[Any] = []
    monkeypatch.setattr(tc_state, "run_json", lambda _: shown)
    tc = TcMirrors("flowcheck", "matchall", TcJournal(ApplyJournal(tmp_path, "tc")))
    add = tc_commands.add_filter(COPY, 1000, "matchall", COOKIE)
    away = "tc filter del dev va ingress protocol all pref 1000 handle 1 matchall"
    every, counted = "tc -j filter show dev va ingress", "tc -s -j filter show dev va ingress"
    said = answers(
        tmp_path,
        [
            "for i in a m; do ip link add v$i type veth peer name w$i; ip link set v$i up",
            "ip link set w$i up; done",
            "tc qdisc add dev va clsact",
            *SOMEBODYS,
            f"say before {every}",
            str(add),
            f"say with_ours {every}",
            "ip address add 10.0.0.1/24 dev wa",
            "ip link set va address 02:00:00:00:00:02",
            "ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev wa",
            f"ping -c {FRAMES} -W 1 -i 0.1 -I wa 10.0.0.2 > /dev/null",
            f"say counted {counted}",
            away,
            f"say after {every}",
        ],
    )
    shown[:] = json.loads(said["with_ours"])
    state = tc_state.TcState(
        links={}, hooks={}, root={}, filters=tc_state.read_hook("va", "ingress")
    )
    assert tc.steps(state, frozenset([COPY])) == []
    assert [str(step) for step in tc.steps(state, frozenset())] == [away]
    packets = {
        one["pref"]: action["stats"]["packets"]
        for one in json.loads(said["counted"])
        for action in one.get("options", {}).get("actions", [])
    }
    assert packets[6] == packets[49152] == FRAMES
    assert packets[1000] >= FRAMES, "ARP and the like are copied too"
    assert json.loads(said["before"]) == json.loads(said["after"])
