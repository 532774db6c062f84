"""Virtual machines under plain emulation, with the kernel's rxe behind their virtio NIC."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from support.rxe import network
from support.rxe.image import Kernel

from flowcheck.lab.cluster import Cluster, run_in

BOOT_LIMIT_S = 300.0
"""Five seconds on a machine with nothing else to do."""
MEMORY_MIB = 256


class Machine:
    """One, in the place of host `host`; it dies with this process."""

    def __init__(self, cluster: Cluster, host: int) -> None:
        self.cluster, self.host = cluster, host
        self._held = ExitStack()
        self._said: list[Path] = []

    def start(self, kernel: Kernel, initramfs: Path) -> None:
        """Switches it on, without waiting until it is up; files beside `initramfs`."""
        folder, host = initramfs.parent, self.host
        self._said = [folder / f"console-{host}", folder / f"qemu-{host}.log"]
        network.make_room(self.cluster, host)
        listener = self._held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / f"agent-{host}"))
        listener.listen(1)
        listener.settimeout(BOOT_LIMIT_S)
        log = self._held.enter_context(self._said[1].open("wb"))
        process = run_in(
            self.cluster.host_namespace(host),
            self._command(kernel, initramfs),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self._held.callback(_end, process)
        try:
            self._agent, _ = listener.accept()
        except TimeoutError as error:
            raise AssertionError(f"the emulator did not start\n{self.words()}") from error
        self._held.enter_context(self._agent)
        self._answers = self._held.enter_context(self._agent.makefile("rb"))
        network.plug_in(self.cluster, host)

    def _command(self, kernel: Kernel, initramfs: Path) -> list[str]:
        plain = ("csum", "gso", "host_tso4", "host_tso6", "guest_csum", "guest_tso4", "guest_tso6")
        nic = f"virtio-net-pci,netdev=net,romfile=,mac={self.cluster.mac(self.host)}"
        options = {
            "machine": "pc",
            "accel": "tcg,thread=multi",
            "cpu": "max",
            "smp": "1",
            "m": str(MEMORY_MIB),
            "display": "none",
            "monitor": "none",
            "serial": f"file:{self._said[0]}",
            "kernel": str(kernel.image),
            "initrd": str(initramfs),
            "append": "console=ttyS0 panic=-1 cryptomgr.notests",
            "netdev": f"tap,id=net,ifname={network.TAP},script=no,downscript=no",
            "chardev": f"socket,id=agent,path={initramfs.parent}/agent-{self.host}",
        }
        devices = (
            nic + "".join(f",{word}=off" for word in plain),
            "virtio-serial-pci",
            "virtserialport,chardev=agent,name=agent",
        )
        command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults"]
        command += ["-no-reboot"]
        for option, value in options.items():
            command += [f"-{option}", value]
        for device in devices:
            command += ["-device", device]
        return command

    def ask(self, line: str, limit_s: float = 60.0) -> bytes:
        """The agent's answer (agent.c). Raises AssertionError where it could not be done."""
        code, answer = self.try_(line, limit_s)
        assert code == 0, f"vm{self.host}: {line}: code {code}: {answer.decode(errors='replace')}"
        return answer

    def try_(self, line: str, limit_s: float = 60.0) -> tuple[int, bytes]:
        """(code, answer), whatever the code."""
        self._agent.settimeout(limit_s)
        try:
            self._agent.sendall(line.encode() + b"\n")
            code, size = map(int, self._answers.readline().split())
            return code, self._answers.read(size)
        except (OSError, ValueError) as error:
            raise AssertionError(f"vm{self.host} gave no answer: {line}\n{self.words()}") from error

    def words(self) -> str:
        """The end of what its kernel and its emulator said."""
        there = [path for path in self._said if path.exists()]
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in there)

    def address(self, version: int, host: int | None = None) -> str:
        """Its own, or another host's."""
        host = self.host if host is None else host
        return self.cluster.address(host) if version == 4 else f"fd77::{host + 1}"

    def gid(self, version: int) -> str:
        """The same as an RDMA address, 32 hex digits."""
        address = ip_address(self.address(version))
        mapped = address if address.version == 6 else IPv6Address(f"::ffff:{address}")
        return mapped.packed.hex()

    def set_up(self) -> None:
        """Addresses, neighbours that need no asking, and rxe."""
        # By path: busybox' shell has an ip of its own.
        ip = "/usr/bin/ip"
        lines = [
            "echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad",
            "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad",
            f"{ip} link set lo up",
            f"{ip} link set eth0 mtu {self.cluster.mtu} up",
        ]
        for version in (4, 6):
            prefix = 24 if version == 4 else 64
            lines.append(f"{ip} addr add {self.address(version)}/{prefix} dev eth0")
            lines += [
                f"{ip} neigh add {self.address(version, other)} lladdr {self.cluster.mac(other)} "
                "dev eth0 nud permanent"
                for other in range(self.cluster.hosts)
                if other != self.host
            ]
        lines.append("/usr/bin/rdma link add rxe0 type rxe netdev eth0")
        self.ask(f"run exec 2>&1; {' && '.join(lines)}", BOOT_LIMIT_S)

    def stop(self) -> None:
        """Switches it off, whatever it does."""
        self._held.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)


@dataclass(frozen=True)
class Completion:
    """Of one write that was sent, or one immediate that came."""

    status: int
    """ibv_wc_status; 0 is success."""
    pair: int
    came: bool
    immediate: int


class Endpoint:
    """Queue pairs and memory of one machine (endpoint.c)."""

    def __init__(
        self, machine: Machine, *, version: int, mtu: int, size: int, pairs: int, psn: int
    ) -> None:
        self.machine, self.psn, self.gid = machine, psn, machine.gid(version)
        self.address = machine.address(version)
        said = machine.ask(
            f"open gid={self.gid} mtu={mtu} bytes={size} pairs={pairs} psn={psn}"
        ).decode()
        values = dict(word.split("=") for word in said.split())
        self.rkey, self.va = int(values["rkey"]), int(values["va"])
        self.pairs = [int(number) for number in values["pairs"].split(",")]

    def join(self, other: Endpoint, timeout: int) -> None:
        """timeout: 4.096 us * 2**timeout without an answer make a retransmission."""
        for nth, number in enumerate(other.pairs):
            self.machine.ask(
                f"join pair={nth} number={number} psn={other.psn} gid={other.gid} timeout={timeout}"
            )

    def fill(self, start: int, seed: int) -> None:
        """Memory from `start` on gets bytes that repeat nowhere."""
        self.machine.ask(f"fill from={start} seed={seed}")

    def expect(self, pair: int, count: int) -> None:
        """So many immediates."""
        self.machine.ask(f"expect pair={pair} count={count}")

    def post(self, pair: int, words: str) -> None:
        self.machine.ask(f"write pair={pair} {words}")

    def completions(self, count: int, limit_s: int = 30) -> list[Completion]:
        """So many, unless time runs out: those there are then."""
        _, said = self.machine.try_(f"wait count={count} s={limit_s}", limit_s + 10)
        found = []
        for line in said.decode().splitlines():
            status, pair, came, immediate = map(int, line.split())
            found.append(Completion(status, pair, bool(came), immediate))
        return found

    def memory(self, size: int) -> bytes:
        """The first `size` bytes, as they are now."""
        return self.machine.ask(f"memory {size}")
