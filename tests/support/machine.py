"""Machines made up file by file, for the doctor to look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flowcheck.ops.node import doctor_command
from flowcheck.ops.node.machine_checks import MachineCheck

GIB = 1 << 30


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pci(root: Path, address: str, ids: tuple[int, int], kind: int, driver: str = "") -> None:
    folder = root / "sys/bus/pci/devices" / address
    put(folder / "vendor", f"{ids[0]:#06x}\n")
    put(folder / "device", f"{ids[1]:#06x}\n")
    put(folder / "subsystem_vendor", "0x0000\n")
    put(folder / "subsystem_device", "0x0001\n")
    put(folder / "class", f"{kind:#08x}\n")
    put(folder / "numa_node", "1\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


def driver_file(folder: Path, name: str, told: str) -> Path:
    """A shared object with DPDK's marker in it, made by the C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "x.c"
    escaped = told.replace('"', '\\"')
    source.write_text(f'const char fc_{name}[] = "PMD_INFO_STRING= {escaped}";\n')
    out = folder / f"librte_{name}.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(out), str(source)]
    subprocess.run(command, check=True, timeout=30)
    return out


def healthy_server(tmp_path: Path) -> Path:
    """A server with an e810 bound to vfio, an IOMMU, huge pages and many cores."""
    put(tmp_path / "proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 88888888 kB\n")
    put(tmp_path / "proc/cpuinfo", "processor : 0\nflags : fpu avx2 avx512f pclmulqdq\n")
    put(tmp_path / "proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n")
    put(tmp_path / "proc/mounts", "nodev /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n")
    pool = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    put(pool / "nr_hugepages", "4096\n")
    put(pool / "free_hugepages", "4000\n")
    for cpu in range(16):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}").mkdir(parents=True)
    for node in range(2):
        (tmp_path / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "sys/kernel/iommu_groups/0").mkdir(parents=True)
    (tmp_path / "sys/module/vfio_pci").mkdir(parents=True)
    pci(tmp_path, "0000:3b:00.0", (0x8086, 0x1592), 0x020000, "vfio-pci")
    pci(tmp_path, "0000:00:1f.0", (0x8086, 0x0001), 0x060100)
    told = '{"name": "net_ice", "kmod": "* vfio-pci", "pci_ids": [[32902, 5522, 65535, 65535]]}'
    driver_file(tmp_path / "usr/lib/x/dpdk/pmds-23.0", "net_ice", told)
    told = '{"name": "dmadev_idxd", "kmod": "vfio-pci", "pci_ids": [[32902, 2853, 65535, 65535]]}'
    driver_file(tmp_path / "usr/lib/x/dpdk/pmds-23.0", "dma_idxd", told)
    return tmp_path


def by_name(root: Path, need_bytes: int = GIB) -> dict[str, MachineCheck]:
    return {
        check.name: check for check in doctor_command.all_checks(root=root, need_bytes=need_bytes)
    }


def interface(root: Path, address: str, name: str, *, up: bool = True) -> None:
    """A kernel interface of a PCI device."""
    (root / "sys/bus/pci/devices" / address / "net" / name).mkdir(parents=True)
    put(root / "sys/class/net" / name / "flags", "0x1003\n" if up else "0x1002\n")
