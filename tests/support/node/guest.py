"""A virtual machine under plain emulation with systemd as its first process, an IOMMU or none, and
NICs that get their frames from this process."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from support.node.image import build
from support.rxe.image import Kernel

BOOT_LIMIT_S = 600.0
"""Half a minute on a machine with nothing else to do."""
MEMORY_MIB = 3072
MONITOR, UPLINK, SPARE, VIRTIO = "0000:00:04.0", "0000:00:05.0", "0000:00:06.0", "0000:00:07.0"
"""Where the NICs are: two e1000e, a vmxnet3, a virtio-net."""
NICS = {MONITOR: "e1000e", UPLINK: "e1000e", SPARE: "vmxnet3", VIRTIO: "virtio-net-pci"}


class Guest:
    """One; it dies with this process. `folder` takes sockets, logs and the initramfs."""

    def __init__(self, folder: Path, *, iommu: bool) -> None:
        self.folder, self.iommu = folder, iommu
        self._held = ExitStack()

    def start(self, of: Kernel) -> None:
        """Switches it on and waits until its agent answers."""
        initramfs = build(of, self.folder)
        listeners = {name: self._listener(name) for name in ("agent", *map(_wire, NICS))}
        log = self._held.enter_context((self.folder / "qemu.log").open("wb"))
        process = subprocess.Popen(
            self._command(of, initramfs), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        self._held.callback(_end, process)
        try:
            ends = {name: listener.accept()[0] for name, listener in listeners.items()}
        except TimeoutError as error:
            raise AssertionError(f"the emulator did not start\n{self.words()}") from error
        for end in ends.values():
            self._held.enter_context(end)
        self._agent = ends["agent"]
        self._answers = self._held.enter_context(self._agent.makefile("rb"))
        self._wires = {nic: ends[_wire(nic)] for nic in NICS}
        self.ask("true", BOOT_LIMIT_S)

    def _listener(self, name: str) -> socket.socket:
        listener = self._held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.folder / name))
        listener.listen(1)
        listener.settimeout(BOOT_LIMIT_S)
        return listener

    def _command(self, of: Kernel, initramfs: Path) -> list[str]:
        modules = (of.root / "lib/modules" / of.release).resolve()
        words = (
            *("console=ttyS0", "quiet", "panic=-1", "mitigations=off", "cryptomgr.notests"),
            # On a busy machine the emulated timer comes too late for a kernel that tries it.
            *("no_timer_check", "nowatchdog"),
            *("systemd.unit=agent.service", "systemd.condition-needs-update=no"),
            *(f"modules={modules}", f"release={of.release}"),
            f"intel_iommu={'on' if self.iommu else 'off'}",
        )
        options = {
            "machine": "q35",
            "accel": "tcg,thread=multi,tb-size=1024",
            "cpu": "max",
            "smp": "1",
            "m": str(MEMORY_MIB),
            "display": "none",
            "monitor": "none",
            "serial": f"file:{self.folder}/console",
            "kernel": str(of.image),
            "initrd": str(initramfs),
            "append": " ".join(words),
            "chardev": f"socket,id=agent,path={self.folder}/agent",
            "fsdev": "local,id=files,path=/,security_model=none,readonly=on,multidevs=remap",
        }
        devices = [
            *(["intel-iommu,intremap=on"] if self.iommu else []),
            "virtio-9p-pci,fsdev=files,mount_tag=files",
            "virtio-serial-pci",
            "virtserialport,chardev=agent,name=agent",
        ]
        command = ["setpriv", "--pdeathsig", "KILL"]
        command += ["qemu-system-x86_64", "-nodefaults", "-no-reboot"]
        for option, value in options.items():
            command += [f"-{option}", value]
        for nic, model in NICS.items():
            name = _wire(nic)
            slot = int(nic[8:10], 16)
            wire = f"stream,id={name},server=off,addr.type=unix,addr.path={self.folder}/{name}"
            command += ["-netdev", wire]
            devices.append(
                f"{model},netdev={name},addr={slot:#x},romfile=,mac=02:00:00:00:00:{slot:02x}"
            )
        for device in devices:
            command += ["-device", device]
        return command

    def ask(self, line: str, limit_s: float = 120.0) -> str:
        """What a line of bash printed. Raises AssertionError where it failed."""
        code, answer = self.try_(line, limit_s)
        assert code == 0, f"{line}: code {code}: {answer}"
        return answer

    def try_(self, line: str, limit_s: float = 120.0) -> tuple[int, str]:
        """(code, what it printed), whatever the code."""
        assert "\n" not in line
        self._agent.settimeout(limit_s)
        try:
            self._agent.sendall(line.encode() + b"\n")
            code, size = map(int, self._answers.readline().split())
            return code, self._answers.read(size).decode(errors="replace")
        except (OSError, ValueError) as error:
            raise AssertionError(f"no answer: {line}\n{self.words()}") from error

    def send(self, nic: str, frames: Iterable[bytes], limit_s: float = 300.0) -> None:
        """Frames onto the wire of `nic`. One whose buffers are full makes this wait: none is lost
        (net/stream.c of qemu: a frame is its length in four bytes, big end first, then itself)."""
        wire = self._wires[nic]
        wire.settimeout(limit_s)
        for frame in frames:
            wire.sendall(struct.pack("!I", len(frame)) + frame)

    def words(self) -> str:
        """The end of what its kernel and its emulator said."""
        said = [self.folder / name for name in ("console", "qemu.log")]
        return "\n".join(p.read_text(errors="replace")[-3000:] for p in said if p.exists())

    def stop(self) -> None:
        """Switches it off, whatever it does."""
        self._held.close()


def _wire(nic: str) -> str:
    return f"wire{int(nic[8:10], 16)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)
