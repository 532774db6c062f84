"""What DPDK's installed drivers drive, read from their shared objects: nothing is started.

Every driver carries `PMD_INFO_STRING= {json}` in its .rodata (DPDK buildtools/pmdinfogen):
its name, the kernel modules a device must be bound to, and PCI IDs as [vendor, device, subsystem
vendor, subsystem device] with 65535 for any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ANY_ID = 0xFFFF
"""PCI ID in a driver's table that matches every ID (DPDK, RTE_PCI_ANY_ID)."""
MARKER = re.compile(rb"PMD_INFO_STRING= (\{[^\0]*\})\0")
FOLDERS = (
    "usr/lib/*/dpdk/pmds-*",
    "usr/lib64/dpdk/pmds-*",
    "usr/local/lib/*/dpdk/pmds-*",
    "usr/local/lib64/dpdk/pmds-*",
    "opt/*/lib/*/dpdk/pmds-*",
    "opt/*/lib64/dpdk/pmds-*",
)
"""Where distributions and `meson install` put them; a static build has them in our own module."""


@dataclass(frozen=True, slots=True)
class DpdkDriver:
    """One driver of one shared object."""

    name: str
    library: str
    """File name without librte_ and .so: net_mlx5, dma_ioat."""
    kernel_modules: str
    """In DPDK's notation: "* vfio-pci & ..." where a device must be bound to one of them."""
    pci_ids: tuple[tuple[int, int, int, int], ...]

    @property
    def kind(self) -> str:
        """net, dma, or another class of device we have no use for."""
        return self.library.partition("_")[0]

    def drives(self, ids: tuple[int, int, int, int]) -> bool:
        return any(
            all(mine in (ANY_ID, theirs) for mine, theirs in zip(own, ids, strict=True))
            for own in self.pci_ids
        )


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device of /sys/bus/pci."""

    address: str
    ids: tuple[int, int, int, int]
    class_code: int
    bound_to: str
    """Kernel driver; empty for none."""
    numa_node: int

    @property
    def is_network(self) -> bool:
        """PCI class 02: network controller."""
        return self.class_code >> 16 == 0x02


def drivers_in(library: Path) -> list[DpdkDriver]:
    """The drivers of one shared object; none where it is no such file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with library.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".rodata")
            text = section.data() if section is not None else b""
    except (OSError, ELFError):
        return []
    found = []
    for matched in MARKER.finditer(text):
        try:
            told = json.loads(matched[1])
            found.append(
                DpdkDriver(
                    name=str(told["name"]),
                    library=library.name.removeprefix("librte_").partition(".so")[0],
                    kernel_modules=str(told.get("kmod", "")),
                    pci_ids=tuple(
                        (int(a), int(b), int(c), int(d)) for a, b, c, d in told["pci_ids"]
                    ),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found


def installed_drivers(folders: Iterable[Path]) -> list[DpdkDriver]:
    """All drivers below `driver_folders`, by library; links to one file count once."""
    libraries = {
        path.resolve(): path for folder in folders for path in sorted(folder.glob("librte_*.so"))
    }
    return [driver for path in sorted(libraries.values()) for driver in drivers_in(path)]


def driver_folders(root: Path) -> list[Path]:
    """Folders of installed drivers below the file system `root`."""
    return sorted(path for pattern in FOLDERS for path in root.glob(pattern) if path.is_dir())


def pci_devices(sysfs: Path) -> list[PciDevice]:
    """Every PCI device `sysfs` tells of."""
    found = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            ids = [
                int((folder / name).read_text(), 16)
                for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
            ]
            found.append(
                PciDevice(
                    address=folder.name,
                    ids=(ids[0], ids[1], ids[2], ids[3]),
                    class_code=int((folder / "class").read_text(), 16),
                    bound_to=(folder / "driver").resolve().name
                    if (folder / "driver").exists()
                    else "",
                    numa_node=int((folder / "numa_node").read_text())
                    if (folder / "numa_node").exists()
                    else -1,
                )
            )
        except (OSError, ValueError):
            continue  # taken out of the bus while we looked
    return found
