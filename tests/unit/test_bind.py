"""NICs given to DPDK and back, on a made-up sysfs that refuses what the kernel refuses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.kernel import PCI, Kernel, put
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.machine_settings import (
    CARRIES,
    DEVICE_IN_USE,
    HAS_ADDRESS,
    HELD_OPEN,
    IS_STORAGE,
    PORT_OF,
    SETTING_NOT_TAKEN,
    SSH_SESSION,
    VIRTUAL_FUNCTIONS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.node import bind_commands, device_in_use, vfio_bind
from flowcheck.ops.node.sysfs_settings import MachineSettings

REPOSITORY = Path(__file__).resolve().parents[2]
NIC, OTHER = "0000:3b:00.0", "0000:3b:00.1"
ETHERNET, NVME = 0x020000, 0x010802
PAUSE = "Pause parameters for cap0:\nAutonegotiate:\ton\nRX:\t\ton\nTX:\t\toff\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path)
    made.pci(NIC, "ice", code=ETHERNET, interface="cap0", group=7)
    return made


def driver(kernel: Kernel, address: str = NIC) -> str:
    return vfio_bind.driver_of(kernel, address)


def nic(kernel: Kernel, *words: str) -> int:
    return bind_commands.main(["nic", *words], kernel)


def test_a_nic_goes_to_vfio_once_and_comes_back_as_it_was(kernel: Kernel) -> None:
    before = kernel.files()
    assert nic(kernel, "bind", NIC) == 0 and driver(kernel) == "vfio-pci"
    bound = kernel.files()
    kernel.said.clear()
    assert nic(kernel, "bind", NIC) == 0 and kernel.files() == bound
    assert not [line for line in kernel.said if "->" in line], "twice is once"
    assert nic(kernel, "undo", NIC) == 0
    assert driver(kernel) == "ice" and kernel.files() == before
    assert not list(kernel.path("run").rglob("*.json"))
    assert nic(kernel, "undo", NIC) == 0, "nothing is left to undo"


def test_every_write_is_said_before_it_is_done_and_new_id_is_none_of_them(kernel: Kernel) -> None:
    nic(kernel, "bind", NIC)
    said = [line.strip().partition(": ")[0] for line in kernel.said if "->" in line]
    device = f"/{PCI}/devices/{NIC}"
    wanted = [f"{device}/driver/unbind", f"{device}/driver_override", f"/{PCI}/drivers_probe"]
    assert said == wanted
    kernel.broken.add(f"{PCI}/drivers/ice/unbind")
    nic(kernel, "undo", NIC)
    kernel.said.clear()
    assert nic(kernel, "bind", NIC) == 2
    assert any("unbind" in line for line in kernel.said), "also one that is refused"


@pytest.mark.parametrize(
    "refused", [f"{PCI}/devices/{NIC}/driver_override", f"{PCI}/drivers_probe"]
)
def test_what_the_kernel_refuses_half_way_is_taken_back(kernel: Kernel, refused: str) -> None:
    kernel.broken.add(refused)
    assert nic(kernel, "bind", NIC) == 2
    kernel.broken.clear()
    nic(kernel, "undo", NIC)
    assert driver(kernel) == "ice"
    assert kernel.read_value(f"{PCI}/devices/{NIC}/driver_override") == "(null)"


def test_a_group_is_given_whole_or_not_at_all(
    kernel: Kernel, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel.pci(OTHER, "ice", code=ETHERNET, interface="cap1", group=7)
    kernel.pci("0000:3a:00.0", "pcieport", code=0x060400, group=7)
    assert nic(kernel, "bind", NIC) == 2
    assert OTHER in capsys.readouterr().err and driver(kernel) == "ice"
    assert nic(kernel, "bind", NIC, OTHER) == 0, "a bridge above them may stay"
    assert driver(kernel) == driver(kernel, OTHER) == "vfio-pci"


def test_without_an_iommu_it_is_asked_for_and_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel(tmp_path)
    kernel.pci(NIC, "ice", code=ETHERNET)
    assert nic(kernel, "bind", NIC) == 2 and "--no-iommu" in capsys.readouterr().err
    assert nic(kernel, "bind", NIC, "--no-iommu") == 0 and driver(kernel) == "vfio-pci"
    assert any("tainted" in line for line in kernel.said)
    assert nic(kernel, "undo", NIC) == 0 and driver(kernel) == "ice"
    assert kernel.read_value(vfio_bind.UNSAFE) == "N"


def test_a_kernel_whose_vfio_wants_an_iommu_gives_it_to_uio(tmp_path: Path) -> None:
    """As Debian's: CONFIG_VFIO_NOIOMMU is not set, the module has no such parameter."""
    kernel = Kernel(tmp_path)
    kernel.path(vfio_bind.UNSAFE).unlink()
    kernel.pci(NIC, "ice", code=ETHERNET, interface="cap0")
    before = kernel.files()
    assert nic(kernel, "bind", NIC, "--no-iommu") == 0 and driver(kernel) == "uio_pci_generic"
    assert ["modprobe", "uio_pci_generic"] in kernel.commands
    assert nic(kernel, "bind", NIC, "--no-iommu") == 0, "twice is once"
    kernel.path(f"{PCI}/devices/{NIC}/uio/uio3").mkdir(parents=True)
    kernel.path("proc/77/fd").mkdir(parents=True)
    kernel.path("proc/77/fd/5").symlink_to("/dev/uio3")
    assert nic(kernel, "undo", NIC) == 2 and driver(kernel) == "uio_pci_generic"
    kernel.path("proc/77/fd/5").unlink()
    assert nic(kernel, "undo", NIC) == 0 and driver(kernel) == "ice"
    assert kernel.files() == before


def routed(kernel: Kernel) -> None:
    put(kernel.root, "proc/net/route", "head\ncap0 0000000A 0 1 0 0 0 00FFFFFF 0 0 0")


def bonded(kernel: Kernel) -> None:
    kernel.path("sys/class/net/bond0").mkdir()
    kernel.path("sys/class/net/cap0/master").symlink_to(kernel.path("sys/class/net/bond0"))


def carrying(kernel: Kernel) -> None:
    kernel.path("sys/class/net/cap0/upper_macvlan3").mkdir()


def virtual(kernel: Kernel) -> None:
    put(kernel.root, f"{PCI}/devices/{NIC}/sriov_numvfs", "4")


def stored(kernel: Kernel) -> None:
    put(kernel.root, f"{PCI}/devices/{NIC}/class", f"0x{NVME:06x}")


def remote(kernel: Kernel) -> None:
    kernel.path(f"{PCI}/devices/{NIC}/infiniband_verbs/uverbs3").mkdir(parents=True)
    kernel.path("proc/4242/fd").mkdir(parents=True)
    kernel.path("proc/4242/fd/9").symlink_to("/dev/infiniband/uverbs3")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (routed, HAS_ADDRESS("cap0")),
        (bonded, PORT_OF(interface="cap0", bridge="bond0")),
        (carrying, CARRIES(interface="cap0", upper="macvlan3")),
        (virtual, VIRTUAL_FUNCTIONS("4")),
        (stored, IS_STORAGE()),
        (remote, HELD_OPEN(pid=4242, file="/dev/infiniband/uverbs3")),
    ],
)
def test_what_this_machine_needs_is_not_taken(
    kernel: Kernel, make: object, why: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    make(kernel)
    before = kernel.files()
    assert nic(kernel, "bind", NIC) == 2
    assert str(why) in capsys.readouterr().err
    assert why in device_in_use.uses_of_device(kernel, NIC, {})
    assert kernel.files() == before


def test_the_way_of_the_ssh_session_is_not_taken(kernel: Kernel) -> None:
    kernel.answers["ip -o route get 10.9.8.7"] = "10.9.8.7 via 10.0.0.1 dev cap0 src 10.0.0.2"
    ssh = {"SSH_CONNECTION": "10.9.8.7 52144 10.0.0.2 22"}
    assert device_in_use.uses_of_device(kernel, NIC, ssh) == [SSH_SESSION("cap0")]
    assert device_in_use.uses_of_device(kernel, NIC, {}) == []


def test_a_device_in_use_is_not_pulled_from_under_its_process(kernel: Kernel) -> None:
    nic(kernel, "bind", NIC)
    kernel.path("proc/77/fd").mkdir(parents=True)
    kernel.path("proc/77/fd/5").symlink_to("/dev/vfio/7")
    with refused_as(DEVICE_IN_USE, kind=ConfigError, pid=77):
        vfio_bind.undo(kernel, NIC)
    assert driver(kernel) == "vfio-pci"


def test_mlx5_stays_with_the_kernel_quiet_and_its_firmware_is_only_spoken_of(
    tmp_path: Path,
) -> None:
    kernel = Kernel(tmp_path)
    kernel.pci(NIC, "mlx5_core", code=ETHERNET, interface="cap0", group=7)
    kernel.answers |= {
        "ethtool -a cap0": PAUSE,
        "ethtool --show-priv-flags cap0": "Private flags for cap0:\nfw-lldp-agent : on\n",
    }
    before = kernel.files()
    assert nic(kernel, "bind", NIC) == 0
    assert kernel.files() == before
    assert [" ".join(words) for words in kernel.commands] == [
        "ip link set cap0 promisc on",
        "ip link set cap0 up",
        "ethtool -A cap0 autoneg off rx off tx off",
        "ethtool --set-priv-flags cap0 fw-lldp-agent off",
    ]
    said = "\n".join(kernel.said)
    assert "enable_roce value false" in said and "ROCE_CONTROL=1" in said
    kernel.commands.clear()
    assert nic(kernel, "undo", NIC) == 0
    assert [" ".join(words) for words in kernel.commands] == [
        "ethtool --set-priv-flags cap0 fw-lldp-agent on",
        "ethtool -A cap0 autoneg on rx on tx off",
        "ip link set cap0 down",
        "ip link set cap0 promisc off",
    ]


def test_the_scripts_say_that_a_root_is_made_up(kernel: Kernel) -> None:
    done = subprocess.run(
        [str(REPOSITORY / "scripts" / "bind-nic"), "show"],
        env={**os.environ, "SYSROOT": str(kernel.root)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "made-up root" in done.stdout
    assert f"{NIC}  ice, cap0, IOMMU group 7 of 1" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes there")
def test_a_real_sysfs_file_that_is_only_written_to_is_reached() -> None:
    """The kernel looks for such a device and says that there is none: nothing changes."""
    with refused_as(
        SETTING_NOT_TAKEN, file=re.compile("drivers_probe$"), error=re.compile("No such|Read-only")
    ):
        MachineSettings(Path("/"), say=lambda _: None).write(f"{PCI}/drivers_probe", "0000:ff:1f.7")


def test_the_page_s_commands_are_taken_in_their_order(kernel: Kernel) -> None:
    text = (REPOSITORY / "scripts" / "node" / "README.md").read_text()
    lines = [
        line.split()[2:] for line in text.splitlines() if line.startswith("$ scripts/bind-nic")
    ]
    assert [words[0] for words in lines] == ["show", "bind", "undo"]
    before = kernel.files()
    assert [nic(kernel, *words) for words in lines] == [0, 0, 0]
    assert kernel.files() == before


@pytest.mark.parametrize("words", [("undo",), ("bind",), ("show", NIC), ("reserve", NIC)])
def test_words_that_say_too_little_or_too_much_are_refused(
    kernel: Kernel, words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        nic(kernel, *words)
