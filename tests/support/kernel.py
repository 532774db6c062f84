"""A made-up sysfs whose files answer as the kernel's do: a write in the wrong order is refused.

What is simulated, from Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci-driver.c,
drivers/base/bus.c, drivers/vfio/pci and drivers/dma/idxd/{sysfs,dma,cdev}.c of Linux.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.ops.node.sysfs_settings import MachineSettings

PCI = "sys/bus/pci"
DSA = "sys/bus/dsa"
UNSAFE = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"


def put(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" if text else "")


class Kernel(MachineSettings):
    """Drivers that bind, refuse, and reset what they are unbound from."""

    def __init__(self, root: Path) -> None:
        self.said: list[str] = []
        self.commands: list[list[str]] = []
        self.answers: dict[str, str] = {}
        self.natural: dict[str, str] = {}
        """Which driver takes a device that has no override."""
        self.broken: set[str] = set()
        """Files that refuse every write."""
        for name in ("drivers_probe", "drivers/vfio-pci/unbind", "drivers/vfio-pci/bind"):
            put(root, f"{PCI}/{name}")
        put(root, UNSAFE, "N")
        super().__init__(root, say=self.said.append, run=self._answer)

    def _answer(self, words: Sequence[str]) -> str:
        told = self.answers.get(" ".join(words))
        if told is None:
            self.commands.append(list(words))
        return told or ""

    def files(self) -> dict[str, str]:
        """Every setting, as it is read; not what is only written to."""
        silent = ("bind", "unbind", "drivers_probe")
        paths = [p for p in (self.root / "sys").rglob("*") if p.name not in silent]
        return {
            str(p): str(p.readlink()) if p.is_symlink() else p.read_text()
            for p in paths
            if p.is_symlink() or p.is_file()
        }

    def pci(
        self, address: str, driver: str, *, code: int, interface: str = "", group: int | None = None
    ) -> None:
        device = f"{PCI}/devices/{address}"
        for name, text in {
            "vendor": "0x8086", "device": "0x1592", "subsystem_vendor": "0x8086",
            "subsystem_device": "0x0001", "class": f"0x{code:06x}", "numa_node": "0",
            "driver_override": "(null)",
        }.items():  # fmt: skip
            put(self.root, f"{device}/{name}", text)
        if interface:
            put(self.root, f"{device}/net/{interface}/flags", "0x1002")
            put(self.root, f"sys/class/net/{interface}/flags", "0x1002")
        if group is not None:
            home = self.path(f"sys/kernel/iommu_groups/{group}")
            (home / "devices").mkdir(parents=True, exist_ok=True)
            (home / "devices" / address).symlink_to(self.path(device))
            (self.path(device) / "iommu_group").symlink_to(home)
        self.natural[address] = driver
        self._bind(address, driver)

    def _bind(self, address: str, driver: str) -> None:
        for name in ("bind", "unbind"):
            put(self.root, f"{PCI}/drivers/{driver}/{name}")
        self.path(f"{PCI}/devices/{address}/driver").symlink_to(
            self.path(f"{PCI}/drivers/{driver}")
        )

    def accelerator(self, *, queues: int, engines: int, legacy: bool = False) -> None:
        device = f"{DSA}/devices/dsa0"
        for driver in ("dsa",) if legacy else ("idxd", "user"):
            for name in ("bind", "unbind"):
                put(self.root, f"{DSA}/drivers/{driver}/{name}")
        for name, text in {
            "state": "disabled", "configurable": "1", "max_groups": "4", "max_batch_size": "1024",
            "max_engines": str(engines), "max_work_queues": str(queues),
            "max_work_queues_size": "128",
        }.items():  # fmt: skip
            put(self.root, f"{device}/{name}", text)
        for engine in range(engines):
            put(self.root, f"{device}/engine0.{engine}/group_id", "-1")
        for queue in range(queues):
            self._reset_queue(f"{device}/wq0.{queue}", legacy=legacy)

    def _reset_queue(self, path: str, *, legacy: bool) -> None:
        values = {
            "state": "disabled", "group_id": "-1", "mode": "shared", "type": "none", "name": "",
            "priority": "0", "size": "0", "clients": "0", "max_batch_size": "32",
        }  # fmt: skip
        for name, text in (values | ({} if legacy else {"driver_name": ""})).items():
            put(self.root, f"{path}/{name}", text)

    def _write(self, name: str, value: str) -> None:
        path = self.path(name).resolve()  # through devices/X/driver
        name = str(path.relative_to(self.root.resolve()))
        if not path.exists() or name in self.broken:
            raise StateError(f"/{name} does not take {value!r}: Invalid argument")
        if name.startswith(DSA):
            self._write_dsa(name, value)
        elif name == f"{PCI}/drivers_probe":
            self._probe(value)
        elif name.endswith("/unbind"):
            self._unbind(value, name.split("/")[-2])
        elif name.endswith("/driver_override"):
            put(self.root, name, value or "(null)")
        else:
            put(self.root, name, value)

    def _refuse(self, wrong: bool, why: str) -> None:
        if wrong:
            raise StateError(why)

    def _probe(self, address: str) -> None:
        device = f"{PCI}/devices/{address}"
        if self.read_value(f"{device}/driver"):
            return  # a bound device is not probed again
        override = self.read_value(f"{device}/driver_override")
        driver = self.natural[address] if override == "(null)" else override
        alone = driver == "vfio-pci" and not self.read_value(f"{device}/iommu_group")
        if alone and self.read_value(UNSAFE) != "Y":
            return  # the probe fails; the write does not
        self._bind(address, driver)
        if driver not in ("vfio-pci", "uio_pci_generic"):
            for path in self.path(f"{device}/net.away").parent.glob("net.away"):
                path.rename(path.with_name("net"))

    def _unbind(self, address: str, driver: str) -> None:
        device = self.path(f"{PCI}/devices/{address}")
        self._refuse(self.read_value(f"{PCI}/devices/{address}/driver") != driver, "No such device")
        (device / "driver").unlink()
        if (device / "net").exists():
            (device / "net").rename(device / "net.away")

    def _write_dsa(self, name: str, value: str) -> None:
        *_, parent, what = name.split("/")
        device = f"{DSA}/devices/dsa0"
        enabled = self.read_value(f"{device}/state") == "enabled"
        if parent in ("idxd", "user", "dsa"):
            self._drive(value, what, enabled=enabled, driver=parent)
            return
        queue = f"{device}/{parent}"
        self._refuse(enabled and what in ("group_id", "size"), "Operation not permitted")
        if parent.startswith("wq"):
            self._refuse(self.read_value(f"{queue}/state") == "enabled", "Operation not permitted")
            self._refuse(what == "name" and not 0 < len(value) <= 15, "Invalid argument")
            if what == "size":
                others = [p for p in self.names(f"{device}/wq*/size") if p != name]
                total = sum(int(self.read_value(p)) for p in others) + int(value)
                self._refuse(total > 128, "Invalid argument")
            if what == "type" and self.read_value(name) != value:
                put(self.root, f"{queue}/name")
        put(self.root, name, value)

    def _drive(self, who: str, what: str, *, enabled: bool, driver: str) -> None:
        device, is_queue = f"{DSA}/devices/dsa0", who.startswith("wq")
        split = driver != "dsa"
        self._refuse(split and is_queue != (driver == "user"), "No such device")
        state = f"{device}/{who}/state" if is_queue else f"{device}/state"
        if what == "unbind":
            self._refuse(self.read_value(state) != "enabled", "No such device")
            if not is_queue:
                for path in self.names(f"{device}/wq*"):
                    self._reset_queue(path, legacy=not split)
            put(self.root, state, "disabled")
            return
        if is_queue:
            told = {
                n: self.read_value(f"{device}/{who}/{n}")
                for n in ("type", "name", "size", "group_id")
            }
            bare = told["type"] != "user" or not told["name"] or told["size"] == "0"
            self._refuse(not enabled or bare or told["group_id"] == "-1", "Operation not permitted")
            named = not split or self.read_value(f"{device}/{who}/driver_name") == "user"
            self._refuse(not named, "No such device")
        put(self.root, state, "enabled")
