"""Ports that a job file names and a machine lacks: what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import healthy_server, interface, pci

from flowcheck.config import SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.ops.job_setup.capture_port_check import check_capture_ports, interfaces


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"interface": "mirror0"}, "source.interface = 'mirror0': there is no such interface"),
        ({"vdev": "net_af_packet0,iface=eno9"}, "source.vdev = 'eno9': there is no such interface"),
        ({"interface": "mirror0"}, "there are lo, eno1 ("),
        ({"pci": "0000:3b:00.1"}, "source.pci = '0000:3b:00.1': this machine has no such PCI"),
        ({"pci": "3b:00.1"}, "are 0000:3b:00.0 (eno1, bound to vfio-pci), 0000:5e:00.0 (bound to"),
        ({"pci": "eno1"}, "source.pci = 'eno1': a PCI address is written as"),
    ],
)
def test_a_port_that_is_not_there_is_told_with_what_is(
    tmp_path: Path, source: dict[str, str], told: str
) -> None:
    machine = healthy_server(tmp_path)
    pci(machine, "0000:5e:00.0", (0x1234, 0x5678), 0x020000, "strange")
    interface(machine, "0000:3b:00.0", "eno1")
    with pytest.raises(ConfigError) as caught:
        check_capture_ports([SourceConfig(**source)], root=machine, names=lambda: ["lo", "eno1"])
    assert told in str(caught.value)


def test_what_is_there_is_left_to_the_capture(tmp_path: Path) -> None:
    machine = healthy_server(tmp_path)
    there = [{"pci": "3B:00.0"}, {"interface": interfaces()[0]}, {"vdev": "net_null0"}]
    sources = [SourceConfig(**source) for source in (*there, {"pci": "3B:00.1"})]
    with pytest.raises(ConfigError, match=r"source\.pci = '3B:00\.1'"):
        check_capture_ports(sources, root=machine)
    check_capture_ports(sources[:-1], root=machine)
