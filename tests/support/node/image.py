"""What a virtual machine with systemd starts from: a distribution's kernel, and an initramfs that
puts a layer in memory over this machine's own file system, which it reads over 9p."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.rxe.image import Archive, Kernel, kernel, modules

HERE = Path(__file__).parent
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
LATER = ("vfio_pci", "uio_pci_generic", "e1000e", "vmxnet3", "virtio_net", "virtio_console")
"""What udev and the scripts load when they come to it."""
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "depmod": "kmod",
    "systemctl": "systemd",
    "udevadm": "udev",
    "setpriv": "util-linux",
}
"""{program: the Debian package that has it}."""


def missing() -> str:
    """What such a machine needs and is not here, as a sentence; empty: nothing."""
    wanted = {package for program, package in PROGRAMS.items() if not shutil.which(program)}
    if wanted:
        return f"not installed: {', '.join(sorted(wanted))} (scripts/nightly installs them)"
    of = kernel()
    if of is None:
        return "no kernel in FLOWCHECK_RXE_KERNEL or .venv (scripts/nightly gets one)"
    folder = of.root / "lib/modules" / of.release / "kernel"
    lacking = [
        name
        for name in (*MODULES, *LATER)
        if not any(folder.rglob(f"{name.replace('_', '[-_]')}.ko*"))
    ]
    if lacking:
        return f"the kernel in {of.root} has no {', '.join(lacking)} (remove it; scripts/nightly)"
    return ""


def build(of: Kernel, folder: Path) -> Path:
    """Packs `folder`/initramfs; its path."""
    archive = Archive()
    for empty in ("/proc", "/dev"):
        archive.folder(empty)
    archive.file("/bin/busybox", Path(str(shutil.which("busybox"))).resolve().read_bytes())
    applets = ("sh", "mount", "umount", "insmod", "mkdir", "rm", "cp", "ln", "echo", "switch_root")
    for applet in applets:
        archive.link(f"/bin/{applet}", "busybox")
    for name in ("agent.sh", "agent.service"):
        archive.file(f"/{name}", (HERE / name).read_bytes(), 0o644)
    archive.file("/init", (HERE / "init.sh").read_bytes())
    order = modules(of, MODULES)
    for module in order:
        archive.file(f"/modules/{module.name}", module.read_bytes(), 0o644)
    archive.file("/modules/order", "".join(f"{m.name}\n" for m in order).encode(), 0o644)
    path = folder / "initramfs"
    path.write_bytes(archive.finished())
    return path
