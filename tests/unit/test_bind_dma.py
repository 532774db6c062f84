"""Copy engines given to DPDK and back, on a made-up sysfs that refuses what the kernel refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.kernel import DSA, PCI, Kernel, put
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.machine_settings import ENGINE_IN_USE, ENGINE_QUEUES, QUEUE_IN_USE
from flowcheck.ops.node import bind_commands, dsa_queues, vfio_bind

CHANNEL, IOAT_CLASS = "0000:00:04.0", 0x088000


def dma(kernel: Kernel, *words: str) -> int:
    return bind_commands.main(["dma", *words], kernel)


@pytest.mark.parametrize("legacy", [False, True], ids=["idxd and user", "dsa"])
def test_work_queues_are_made_for_dpdk_and_unmade(tmp_path: Path, legacy: bool) -> None:
    kernel = Kernel(tmp_path)
    kernel.accelerator(queues=8, engines=4, legacy=legacy)
    before = kernel.files()
    assert dma(kernel, "reserve", "dsa0", "--queues", "3") == 0
    for queue in range(3):
        path = f"{DSA}/devices/dsa0/wq0.{queue}"
        seen = [kernel.read_value(f"{path}/{n}") for n in ("state", "type", "mode", "name", "size")]
        assert seen == ["enabled", "user", "dedicated", f"dpdk_wq0.{queue}", "42"]
    ready = kernel.files()
    assert dma(kernel, "reserve", "dsa0", "--queues", "3") == 0 and kernel.files() == ready
    assert dma(kernel, "undo", "dsa0") == 0 and kernel.files() == before


def test_an_accelerator_of_somebody_else_s_or_in_use_is_left_alone(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.accelerator(queues=2, engines=2)
    with refused_as(ENGINE_QUEUES, kind=ConfigError, most=2, key="queues"):
        dsa_queues.reserve_queues(kernel, "dsa0", 3)
    dsa_queues.reserve_queues(kernel, "dsa0", 1)
    put(tmp_path, f"{DSA}/devices/dsa0/wq0.0/clients", "1")
    with refused_as(QUEUE_IN_USE, kind=ConfigError, queue="wq0.0"):
        dsa_queues.undo(kernel, "dsa0")
    put(tmp_path, f"{DSA}/devices/dsa0/wq0.0/name", "storage")
    with refused_as(ENGINE_IN_USE, kind=ConfigError):
        dsa_queues.reserve_queues(kernel, "dsa0", 1)


def test_an_accelerator_that_refuses_half_way_is_as_before(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.accelerator(queues=2, engines=2)
    before = kernel.files()
    kernel.broken.add(f"{DSA}/drivers/user/bind")
    with refused_as(ERROR_TEXT, text=re.compile("user/bind")):
        dsa_queues.reserve_queues(kernel, "dsa0", 2)
    assert kernel.files() == before


def test_a_channel_of_ioat_goes_to_vfio_unless_the_kernel_copies_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel(tmp_path)
    kernel.pci(CHANNEL, "ioatdma", code=IOAT_CLASS, group=3)
    put(tmp_path, f"{PCI}/devices/{CHANNEL}/dma/dma0chan0/in_use", "1")
    assert dma(kernel, "reserve", CHANNEL) == 2 and "dma0chan0" in capsys.readouterr().err
    put(tmp_path, f"{PCI}/devices/{CHANNEL}/dma/dma0chan0/in_use", "0")
    assert (
        dma(kernel, "reserve", CHANNEL) == 0 and vfio_bind.driver_of(kernel, CHANNEL) == "vfio-pci"
    )
    assert dma(kernel, "undo", CHANNEL) == 0 and vfio_bind.driver_of(kernel, CHANNEL) == "ioatdma"


def test_a_machine_without_engines_is_told_what_was_looked_at(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert dma(kernel, "show") == 0
    assert kernel.said[-1].strip().startswith("no copy engine: no accelerator in /sys/bus/dsa")
