"""`flowcheck doctor`: is this machine ready? Each line is one check and, where it fails, what
to do.

Only files are read; nothing is started or changed. `root` stands for the file system, so that
tests can make one up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.markup import escape

from flowcheck.findings.catalog import machine_readiness as told
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.node import installed_dpdk_drivers, machine_checks, nic_usage
from flowcheck.ops.node.machine_checks import CheckKind, Level, MachineCheck

DEFAULT_NEED_BYTES = 1 << 30
"""A ring of 65,536 slots, DPDK, staging: without a model."""
LEVEL_CELLS = 4
"""The widest level."""


def all_checks(
    *, root: Path = Path("/"), need_bytes: int = DEFAULT_NEED_BYTES, run_folder: Path | None = None
) -> list[MachineCheck]:
    """All checks in the order of the data's way. need_bytes: memory the job will take."""
    drivers = installed_dpdk_drivers.installed_drivers(installed_dpdk_drivers.driver_folders(root))
    if not drivers:
        drivers = built_in_drivers()
    devices = installed_dpdk_drivers.pci_devices(root / "sys")
    uses = {device.address: nic_usage.nic_usage_of(root, device.address) for device in devices}
    return [
        dpdk_build(),
        *check_drivers(drivers),
        *check_devices(drivers, devices, uses),
        check_iommu(root, drivers, [d for d in devices if not uses[d.address].would_lose]),
        machine_checks.check_hugepages(root, need_bytes),
        machine_checks.check_hugetlbfs_mount(root),
        machine_checks.check_shm(root, need_bytes),
        machine_checks.check_shm_pages(root, need_bytes),
        machine_checks.check_memory(root, need_bytes),
        machine_checks.check_cpu_flags(root),
        machine_checks.check_cores(root),
        machine_checks.check_capabilities(root),
        machine_checks.check_real_time(root),
        *([machine_checks.run_folder_check(root, run_folder)] if run_folder is not None else []),
    ]


def run(*, need_bytes: int = 0, as_json: bool = False, run_folder: Path | None = None) -> int:
    """Prints the report; 1 if any line is a failure, else 0. need_bytes 0: without a model."""
    found = all_checks(need_bytes=need_bytes or DEFAULT_NEED_BYTES, run_folder=run_folder)
    if as_json:
        lines = [msgspec.to_builtins(one) | {"name": one.name} for one in found]
        print(msgspec.json.format(msgspec.json.encode(lines), indent=1).decode())
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        out, names = SentenceConsole(), max(len(check.name) for check in found)
        indent = LEVEL_CELLS + 2 + names + 2
        for check in found:
            mark = f"[{colours[check.level]}]{check.level:<{LEVEL_CELLS}}[/]"
            shown = escape(str(check.found))
            out.print(f"{mark}  {escape(check.name):<{names}}  {shown}", indent=indent)
            if check.advice:
                advice = f"{' ' * indent}[dim]-> {escape(str(check.advice))}[/]"
                out.print(advice, indent=indent)
    return int(any(check.level == "fail" for check in found))


def built_in_drivers() -> list[installed_dpdk_drivers.DpdkDriver]:
    """The drivers of a capture module linked statically."""
    folder = Path(__file__).resolve().parents[2]
    return [
        driver
        for path in folder.glob("_dpdk*.so")
        for driver in installed_dpdk_drivers.drivers_in(path)
    ]


def dpdk_build(version: Callable[[], str] | None = None) -> MachineCheck:
    """version: says DPDK's version or raises ImportError; for tests."""
    try:
        return MachineCheck(CheckKind.DPDK, "ok", told.DPDK_THERE((version or dpdk_version)()))
    except ImportError as error:
        return MachineCheck(CheckKind.DPDK, "warn", told.DPDK_MISSING(error), told.INSTALL_DPDK())


def dpdk_version() -> str:
    from flowcheck._dpdk import ffi, lib

    return str(ffi.string(lib.fc_eal_version()).decode())


def check_drivers(drivers: list[installed_dpdk_drivers.DpdkDriver]) -> list[MachineCheck]:
    found = []
    for kind, what in (("net", CheckKind.NIC_DRIVERS), ("dma", CheckKind.COPY_ENGINES)):
        names = sorted({driver.library for driver in drivers if driver.kind == kind})
        ids = sum(len(driver.pci_ids) for driver in drivers if driver.kind == kind)
        if names:
            there = told.DPDK_DRIVERS(count=len(names), pci_ids=ids, drivers=names)
        else:
            there = told.NO_DPDK_DRIVERS()
        advice = None if names or kind == "dma" else told.INSTALL_NIC_DRIVERS()
        found.append(MachineCheck(what, "warn" if advice else "ok", there, advice))
    return found


def check_devices(
    drivers: list[installed_dpdk_drivers.DpdkDriver],
    devices: list[installed_dpdk_drivers.PciDevice],
    uses: dict[str, nic_usage.NicUsage],
) -> list[MachineCheck]:
    """One line per device a driver of DPDK knows, and per network device none knows.

    uses: by PCI address, what the machine itself uses a device for.
    """
    found = []
    for device in devices:
        use = uses[device.address]
        fits = [d for d in drivers if d.kind in ("net", "dma") and d.drives(device.ids)]
        if not fits and not device.is_network:
            continue
        if use.would_lose:
            needed = told.DEVICE_NEEDED_HERE(
                device=device_description(device, []), reasons=use.would_lose
            )
            found.append(MachineCheck(CheckKind.DEVICE, "ok", needed, device=device.address))
            continue
        there = device_description(device, fits)
        if not fits:
            by_name = told.USE_BY_NAME()
            found.append(MachineCheck(CheckKind.DEVICE, "warn", there, by_name, device.address))
            continue
        bound = check_binding(device, fits, use, there)
        found.append(MachineCheck(CheckKind.DEVICE, *bound, device.address))
    ports = [device for device in devices if device.is_network]
    if ports and all(uses[device.address].would_lose for device in ports):
        needed, other = told.ALL_NICS_NEEDED(), told.ANOTHER_PORT()
        found.append(MachineCheck(CheckKind.NICS, "warn", needed, other))
    if not ports:
        none, without = told.NO_PCI_NIC(), told.CAPTURE_WITHOUT_PCI()
        found.append(MachineCheck(CheckKind.NICS, "warn", none, without))
    return found


def device_description(
    device: installed_dpdk_drivers.PciDevice, fits: list[installed_dpdk_drivers.DpdkDriver]
) -> Finding:
    """Its PCI IDs, what it is bound to, where it is. fits: DPDK's drivers to name with it."""
    vendor, product = device.ids[:2]
    facts = [told.BOUND_TO(device.bound_to) if device.bound_to else told.BOUND_TO_NOTHING()]
    if device.numa_node >= 0:
        facts.append(told.ON_NUMA_NODE(device.numa_node))
    if fits:
        facts.append(told.DRIVEN_BY({driver.library for driver in fits}))
    return told.DEVICE(vendor=vendor, product=product, facts=facts)


def check_binding(
    device: installed_dpdk_drivers.PciDevice,
    fits: list[installed_dpdk_drivers.DpdkDriver],
    use: nic_usage.NicUsage,
    there: Finding,
) -> tuple[Level, Finding, Finding | None]:
    """Whether the device is bound to a kernel module its DPDK driver works with."""
    wanted = sorted({word for d in fits for word in re.findall(r"[\w-]+", d.kernel_modules)})
    bifurcated = any("mlx" in word for word in wanted)
    if not wanted or bifurcated or device.bound_to.replace("_", "-") in wanted:
        return "ok", there, None
    best = "vfio-pci" if "vfio-pci" in wanted else wanted[0]
    command = f"dpdk-devbind.py -b {best} {device.address}"
    if best == "vfio-pci":
        script = "bind-nic bind" if device.is_network else "bind-dma reserve"
        command = f"scripts/{script} {device.address}"
    if use.up:
        name = use.up[0]
        up = told.DEVICE_UP(device=there, interface=name)
        return "warn", up, told.BIND_DEVICE_UP(interface=name, command=command)
    return "warn", there, told.BIND_DEVICE(command)


def check_iommu(
    root: Path,
    drivers: list[installed_dpdk_drivers.DpdkDriver],
    devices: list[installed_dpdk_drivers.PciDevice],
) -> MachineCheck:
    groups = len(list((root / "sys/kernel/iommu_groups").glob("*")))
    vfio = any(
        (root / path).exists() for path in ("sys/module/vfio_pci", "sys/bus/pci/drivers/vfio-pci")
    )
    found = (told.VFIO_LOADED if vfio else told.VFIO_NOT_LOADED)(groups)
    needs = [
        device.address
        for device in devices
        if any(d.drives(device.ids) and "vfio-pci" in d.kernel_modules for d in drivers)
    ]
    if not needs or (groups and vfio):
        return MachineCheck(CheckKind.IOMMU, "ok", found)
    return MachineCheck(CheckKind.IOMMU, "warn", found, told.SWITCH_IOMMU_ON(needs[:4]))
