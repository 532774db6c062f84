"""What a virtual machine starts from: a distribution's kernel, and an initramfs made of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
MODULES = (
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "act_mirred",
    "ifb",
)
"""What the guest loads, with all they need. A module that is built in, or that a kernel has no
more, is left out: crc32_generic is what rxe computed ICRCs with up to 6.14."""
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "nft": "nftables",
    "modprobe": "kmod",
    "depmod": "kmod",
    "rdma": "iproute2",
    "tc": "iproute2",
    "ip": "iproute2",
    "setpriv": "util-linux",
    "gcc": "gcc",
}
"""{program: the Debian package that has it}."""
GUEST_PROGRAMS = ("ip", "tc", "rdma")
LIMIT_S = 60


@dataclass(frozen=True)
class Kernel:
    """One unpacked: `root` holds boot/vmlinuz-RELEASE and lib/modules/RELEASE."""

    root: Path
    release: str

    @property
    def image(self) -> Path:
        return self.root / f"boot/vmlinuz-{self.release}"


def kernel() -> Kernel | None:
    """The newest with rxe below FLOWCHECK_RXE_KERNEL, or where scripts/nightly unpacks one."""
    root = Path(os.environ.get("FLOWCHECK_RXE_KERNEL", REPOSITORY / ".venv/rxe-kernel"))
    found = sorted(
        image.name.removeprefix("vmlinuz-")
        for image in root.glob("boot/vmlinuz-*")
        if any((root / "lib/modules" / image.name.removeprefix("vmlinuz-")).rglob("rdma_rxe.ko*"))
    )
    return Kernel(root, found[-1]) if found else None


def provider() -> Path | None:
    """libibverbs' driver for rxe."""
    found = sorted(Path("/usr").glob("lib*/*/libibverbs/librxe-rdmav*.so"))
    return found[-1] if found else None


def missing() -> str:
    """What such machines need and is not here, as a sentence; empty: nothing."""
    wanted = {package for program, package in PROGRAMS.items() if not shutil.which(program)}
    if provider() is None:
        wanted.add("ibverbs-providers")
    if not Path("/usr/include/infiniband/verbs.h").exists():
        wanted.add("libibverbs-dev")
    if wanted:
        return f"not installed: {', '.join(sorted(wanted))} (scripts/nightly installs them)"
    if kernel() is None:
        return "no kernel with rdma_rxe in FLOWCHECK_RXE_KERNEL or .venv (scripts/nightly gets one)"
    return ""


class Archive:
    """An initramfs in the making: cpio's "newc" format, by the kernel's
    Documentation/driver-api/early-userspace/buffer-format.rst."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._there: set[str] = set()

    def folder(self, path: str) -> None:
        if path in self._there or path == "/":
            return
        self.folder(str(Path(path).parent))
        self._there.add(path)
        self._entry(path, 0o040755, b"")

    def file(self, path: str, content: bytes, mode: int = 0o755) -> None:
        if path not in self._there:
            self.folder(str(Path(path).parent))
            self._there.add(path)
            self._entry(path, 0o100000 | mode, content)

    def link(self, path: str, target: str) -> None:
        self.folder(str(Path(path).parent))
        self._entry(path, 0o120777, target.encode())

    def program(self, path: Path, where: str) -> None:
        """With the libraries it is linked to, each where it lies here."""
        self.file(where, path.read_bytes())
        for library in re.findall(r"(/\S+) \(0x", _run("ldd", str(path))):
            self.file(library, Path(library).read_bytes())

    def finished(self) -> bytes:
        self._entry("/TRAILER!!!", 0, b"")
        return bytes(self._data)

    def _entry(self, path: str, mode: int, content: bytes) -> None:
        name = path.lstrip("/").encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, four device numbers, name's size, checksum
        fields = (len(self._there), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        self._data += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self._data += bytes(-len(self._data) % 4) + content
        self._data += bytes(-len(self._data) % 4)


def build(of: Kernel, folder: Path) -> Path:
    """Compiles the agent and packs `folder`/initramfs; its path. Takes about a second."""
    agent = folder / "agent"
    sources = [str(HERE / "agent.c"), str(HERE / "endpoint.c")]
    _run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(agent), *sources, "-libverbs")
    archive = Archive()
    for empty in ("/proc", "/sys", "/dev", "/tmp", "/run"):
        archive.folder(empty)
    archive.file("/init", (HERE / "init.sh").read_bytes())
    archive.file("/bin/busybox", _found("busybox").read_bytes())
    for applet in ("sh", "mount", "insmod", "sleep", "poweroff", "cat", "dmesg", "echo"):
        archive.link(f"/bin/{applet}", "busybox")
    archive.program(agent, "/usr/bin/agent")
    for program in GUEST_PROGRAMS:
        archive.program(_found(program), f"/usr/bin/{program}")
    driver = provider()
    assert driver is not None
    archive.program(driver, str(driver))
    archive.file("/etc/libibverbs.d/rxe.driver", b"driver rxe\n", 0o644)
    order = modules(of)
    for module in order:
        archive.file(f"/modules/{module.name}", module.read_bytes(), 0o644)
    archive.file("/modules/order", "".join(f"{m.name}\n" for m in order).encode(), 0o644)
    path = folder / "initramfs"
    path.write_bytes(archive.finished())
    return path


def modules(of: Kernel, wanted: tuple[str, ...] = MODULES) -> list[Path]:
    """The module files of `wanted`, each after all it needs."""
    if not (of.root / "lib/modules" / of.release / "modules.dep").exists():
        _run("depmod", "-b", str(of.root), of.release)
    found: dict[Path, None] = {}
    for module in wanted:
        command = ("modprobe", "-d", str(of.root), "-S", of.release, "--show-depends", module)
        listed = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert listed.returncode == 0 or module == "crc32_generic", listed.stderr
        for line in listed.stdout.splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                found[path if path.exists() else of.root / path.relative_to("/")] = None
    return list(found)


def _found(program: str) -> Path:
    path = shutil.which(program)
    assert path is not None, program
    return Path(path).resolve()


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
