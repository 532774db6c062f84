"""What is printed for Linux tc, pasted into a real one: all of it, none of it, and away again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from flowcheck.ops.switch import mirror_session_options, switch_platforms
from flowcheck.ops.switch.config_rendering import CommandPart, render

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
SOURCES = ["eth1:both", "eth2"]
NAMESPACE = f"rendered{os.getpid()}"
Shell = Callable[[str], tuple[int, str]]


@pytest.fixture
def shell() -> Iterator[Shell]:
    """bash in a namespace with three devices; eth1 has somebody's clsact."""

    def run(text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["ip", "netns", "exec", NAMESPACE, "bash", "-c", text],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        for device in ("eth1", "eth2", "eth9"):
            run(f"ip link add {device} type veth peer name far{device} && ip link set {device} up")
        run("tc qdisc add dev eth1 clsact; tc qdisc add dev eth2 clsact")
        yield run
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


def printed(part: CommandPart, erspan: str | None = None) -> str:
    """Of the form this kernel has; ERSPAN's device is another kind, which any kernel makes."""
    request = mirror_session_options.parse_session(
        switch_platforms.platform_named("tc"),
        SOURCES,
        monitor=None if erspan else "eth9",
        erspan=erspan,
    )
    lines = [line.command for line in render("tc", request, [part], "u32") if line.part is part]
    head, _, behind = "\n".join(lines).partition("type erspan seq")
    return head + ("type veth" + behind[behind.index(" && {") :] if behind else "")


def held(shell: Shell) -> str:
    """Devices, qdiscs, filters and tables; a number that grows with each filter ever made apart."""
    hooks = "; ".join(
        f"tc filter show dev {device} {way}"
        for device in ("eth1", "eth2")
        for way in ("ingress", "egress")
    )
    return shell(f"ip -br link; tc qdisc show; {hooks}")[1]


def copies(shell: Shell) -> int:
    return held(shell).count("Egress Mirror to device")


def test_pasted_and_pasted_away_no_filter_and_no_table_is_left(shell: Shell) -> None:
    before = held(shell)
    shell(printed(CommandPart.SETUP))
    assert copies(shell) == 3
    shell(printed(CommandPart.REMOVE))
    assert held(shell) == before
    assert shell(printed(CommandPart.REMOVE))[0] != 0
    assert held(shell) == before


def test_a_tunnel_that_fails_half_way_undoes_what_it_made_and_nothing_else(shell: Shell) -> None:
    setup, remove = (
        printed(part, "src=10.0.0.1,dst=10.0.0.2,id=5")
        for part in (CommandPart.SETUP, CommandPart.REMOVE)
    )
    before = held(shell)
    # The n-th filter is refused, as by a device that went meanwhile.
    for nth in (1, 2, 3):
        fails = f'tc() {{ case "$*" in "filter add"*) ((++n == {nth})) && return 1;; esac; '
        code, _ = shell(f'{fails} command tc "$@"; }}; {setup}')
        assert (code, held(shell)) == (1, before)
    # Somebody has the name: neither taken nor deleted.
    shell("ip link add fc-es5 type veth peer name somebodys")
    with_somebodys = held(shell)
    assert shell(setup)[0] != 0
    assert held(shell) == with_somebodys
    shell("ip link del fc-es5")
    assert (shell(setup)[0], copies(shell)) == (0, 3)
    shell(remove)
    assert held(shell) == before
