"""Ports that a job file names and a machine lacks: what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import healthy_server, interface, pci
from support.refused_as import Wanted, like, refused_as

from flowcheck.config import SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.starting_a_chain import BAD_PCI_ADDRESS, NO_DEVICE, NO_INTERFACE
from flowcheck.ops.job_setup.capture_port_check import check_capture_ports, interfaces


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (
            {"interface": "mirror0"},
            like(NO_INTERFACE, key="source.interface", value="'mirror0'"),
        ),
        (
            {"vdev": "net_af_packet0,iface=eno9"},
            like(NO_INTERFACE, key="source.vdev", value="'eno9'"),
        ),
        ({"interface": "mirror0"}, NO_INTERFACE(there=("lo", "eno1"), job="JOB.toml")),
        (
            {"pci": "0000:3b:00.1"},
            like(NO_DEVICE, key="source.pci", value="'0000:3b:00.1'"),
        ),
        (
            {"pci": "3b:00.1"},
            NO_DEVICE(
                ("0000:3b:00.0 (eno1, bound to vfio-pci)", "0000:5e:00.0 (bound to strange)")
            ),
        ),
        (
            {"pci": "eno1"},
            like(BAD_PCI_ADDRESS, key="source.pci", value="'eno1'"),
        ),
    ],
)
def test_a_port_that_is_not_there_is_told_with_what_is(
    tmp_path: Path, source: dict[str, str], wanted: Wanted
) -> None:
    machine = healthy_server(tmp_path)
    pci(machine, "0000:5e:00.0", (0x1234, 0x5678), 0x020000, "strange")
    interface(machine, "0000:3b:00.0", "eno1")
    with refused_as(wanted, kind=ConfigError):
        check_capture_ports([SourceConfig(**source)], root=machine, names=lambda: ["lo", "eno1"])


def test_what_is_there_is_left_to_the_capture(tmp_path: Path) -> None:
    machine = healthy_server(tmp_path)
    there = [{"pci": "3B:00.0"}, {"interface": interfaces()[0]}, {"vdev": "net_null0"}]
    sources = [SourceConfig(**source) for source in (*there, {"pci": "3B:00.1"})]
    with refused_as(NO_DEVICE, kind=ConfigError, key="source.pci", value="'3B:00.1'"):
        check_capture_ports(sources, root=machine)
    check_capture_ports(sources[:-1], root=machine)
