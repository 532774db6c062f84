"""The doctor on machines made up file by file, and its reading of drivers judged by strings(1)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.machine import GIB, by_name, driver_file, healthy_server, pci, put

from flowcheck.findings.finding import Finding, entries
from flowcheck.ops.node import doctor_command, installed_dpdk_drivers, machine_checks


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return healthy_server(tmp_path)


def test_a_healthy_server_has_nothing_to_mend(healthy: Path) -> None:
    found = by_name(healthy)
    needing = {name: check for name, check in found.items() if check.level != "ok"}
    needing.pop("dpdk", None)  # of this machine, not of the made-up one
    assert needing == {}
    assert "driven by net_ice" in str(found["0000:3b:00.0"].found)
    assert "NUMA node 1" in str(found["0000:3b:00.0"].found)
    assert str(found["cores"].found) == "16 cores, 2 NUMA nodes"
    assert "0000:00:1f.0" not in found, "a bridge is none of our business"
    assert str(found["copy engines"].found) == "1 (1 PCI IDs): dma_idxd"


def test_a_nic_at_the_kernel_is_told_how_to_be_bound(healthy: Path) -> None:
    pci(healthy, "0000:3b:00.1", (0x8086, 0x1592), 0x020000, "ice")
    found = by_name(healthy)["0000:3b:00.1"]
    assert found.level == "warn"
    assert "scripts/bind-nic bind 0000:3b:00.1" in str(found.advice)


def test_a_nic_no_driver_knows_is_told_to_be_used_by_name(healthy: Path) -> None:
    pci(healthy, "0000:5e:00.0", (0x1234, 0x5678), 0x020000, "strange")
    found = by_name(healthy)["0000:5e:00.0"]
    assert (found.level, "interface name" in str(found.advice)) == ("warn", True)


def test_a_mellanox_nic_stays_with_its_kernel_driver(healthy: Path) -> None:
    told = (
        '{"name": "mlx5_eth", "kmod": "* ib_uverbs & mlx5_core & mlx5_ib",'
        ' "pci_ids": [[5555, 4119, 65535, 65535]]}'
    )
    driver_file(healthy / "usr/lib/x/dpdk/pmds-23.0", "net_mlx5", told)
    pci(healthy, "0000:af:00.0", (0x15B3, 0x1017), 0x020000, "mlx5_core")
    assert by_name(healthy)["0000:af:00.0"].level == "ok"


def test_an_engine_waiting_for_the_kernel_driver_is_a_warning(healthy: Path) -> None:
    pci(healthy, "0000:6a:01.0", (0x8086, 0x0B25), 0x088000, "idxd")
    found = by_name(healthy)["0000:6a:01.0"]
    assert found.level == "warn" and "dma_idxd" in str(found.found)


def test_vfio_without_an_iommu_is_told(healthy: Path) -> None:
    shutil.rmtree(healthy / "sys/kernel/iommu_groups/0")
    found = by_name(healthy)["IOMMU/VFIO"]
    assert found.level == "warn" and "0000:3b:00.0" in str(found.advice)


def test_missing_huge_pages_say_how_many_to_reserve(healthy: Path) -> None:
    put(healthy / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n")
    found = by_name(healthy)["hugepages"]
    assert found.level == "warn"
    assert str(found.advice).endswith(f"reserve {4096 + 512 - 12}`")
    assert found.found.arguments == {"pages": 4096, "free": 12, "needed": 512}
    assert found.advice and found.advice.arguments == {"pages": 4096 + 512 - 12}


def test_small_pages_of_shared_memory_say_how_to_get_large_ones(healthy: Path) -> None:
    assert by_name(healthy)["/dev/shm pages"].level == "ok", "hugetlbfs has room"
    put(healthy / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n")
    found = by_name(healthy)["/dev/shm pages"]
    assert found.level == "warn"
    assert "mount -o remount,huge=within_size /dev/shm" in str(found.advice)
    mounts = healthy / "proc/mounts"
    put(mounts, mounts.read_text() + "tmpfs /dev/shm tmpfs rw,nosuid,huge=within_size 0 0\n")
    assert by_name(healthy)["/dev/shm pages"].level == "ok"
    put(mounts, mounts.read_text() + "tmpfs /dev/shm tmpfs rw,nosuid,huge=never 0 0\n")
    assert by_name(healthy)["/dev/shm pages"].level == "warn"


def test_memory_short_of_the_need_fails(healthy: Path) -> None:
    assert by_name(healthy, 80 * GIB)["memory"].level == "ok"
    assert by_name(healthy, 90 * GIB)["memory"].level == "fail"


def test_an_empty_machine_is_a_report_and_not_a_crash(tmp_path: Path) -> None:
    found = {check.name: check for check in doctor_command.all_checks(root=tmp_path)}
    assert found["/dev/shm"].level == "fail"
    assert found["memory"].level == "fail"
    assert str(found["cpu"].found) == "avx2 no, pclmulqdq no, avx512f no"
    assert found["rights"].level == "warn"
    assert found["NIC"].level == "warn"


def test_a_missing_capture_module_says_why_and_what_to_do() -> None:
    def missing() -> str:
        raise ImportError("librte_eal.so.23: cannot open shared object file")

    found = doctor_command.dpdk_build(missing)
    assert found.level == "warn"
    assert "librte_eal.so.23" in str(found.found) and "libdpdk-dev" in str(found.advice)


def test_run_folders_too_deep_or_far_away_are_told(healthy: Path, tmp_path: Path) -> None:
    put(healthy / "proc/mounts", "x / ext4 rw 0 0\nx /mnt nfs4 rw 0 0\nx /mnt/near tmpfs rw 0 0\n")
    assert machine_checks.run_folder_check(healthy, Path("/x" * 60)).level == "fail"
    assert machine_checks.file_system_of(healthy, Path("/mnt/a")) == "nfs4"
    assert machine_checks.file_system_of(healthy, Path("/mnt/near/a")) == "tmpfs"
    assert machine_checks.file_system_of(healthy, Path("/mnt2")) == "ext4"
    assert machine_checks.run_folder_check(healthy, Path("/tmp/fc-run")).level == "ok"


def test_torn_and_foreign_files_among_the_drivers_are_passed_over(healthy: Path) -> None:
    folder = healthy / "usr/lib/x/dpdk/pmds-23.0"
    good = (folder / "librte_net_ice.so").read_bytes()
    (folder / "librte_net_torn.so").write_bytes(good[: len(good) // 3])
    (folder / "librte_net_text.so").write_text("no shared object")
    driver_file(folder, "net_odd", '{"name": "x", "pci_ids": [[1, 2]]}')
    assert {driver.library for driver in installed_dpdk_drivers.installed_drivers([folder])} == {
        "net_ice",
        "dma_idxd",
    }


@pytest.mark.skipif(shutil.which("strings") is None, reason="strings (binutils) is not installed")
def test_real_drivers_are_read_as_strings_reads_them() -> None:
    folders = installed_dpdk_drivers.driver_folders(Path("/"))
    if not folders:
        pytest.skip("no DPDK drivers are installed")
    expected = set()
    for path in {file.resolve() for file in folders[0].glob("librte_*.so")}:
        text = subprocess.run(["strings", "-a", path], capture_output=True, text=True, check=True)
        for line in re.findall(r"PMD_INFO_STRING= (\{.*\})", text.stdout):
            told = json.loads(line)
            expected.add((told["name"], tuple(map(tuple, told["pci_ids"]))))
    found = {
        (driver.name, driver.pci_ids)
        for driver in installed_dpdk_drivers.installed_drivers(folders[:1])
    }
    assert found == expected
    assert len(found) > 10


def test_the_report_for_programs_is_json_with_every_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = doctor_command.run(as_json=True)
    lines = json.loads(capsys.readouterr().out)
    assert {line["level"] for line in lines} <= {"ok", "warn", "fail"}
    assert code == int(any(line["level"] == "fail" for line in lines))
    assert all(line["advice"] for line in lines if line["level"] != "ok")
    told = [line[key] for line in lines for key in ("found", "advice") if line[key]]
    assert {one["code"] for one in told} <= set(entries())
    kinds = {line["check"]: line["name"] for line in lines}
    assert kinds["dev_shm"] == "/dev/shm" and kinds["memory"] == "memory"
    assert {line["check"] for line in lines if line["device"]} <= {"device"}
    single = [line["check"] for line in lines if not line["device"]]
    assert len(single) == len(set(single)) > 10, "a code for each line"


def test_what_was_found_is_numbers_and_names_for_programs(healthy: Path) -> None:
    found = by_name(healthy, 3 * GIB)
    device = found["0000:3b:00.0"].found.arguments
    assert (device["vendor"], device["product"]) == (0x8086, 0x1592)
    assert isinstance(device["facts"], tuple)
    facts = [one for one in device["facts"] if isinstance(one, Finding)]
    assert [(one.code, one.arguments) for one in facts] == [
        ("doctor.bound_to", {"driver": "vfio-pci"}),
        ("doctor.on_numa_node", {"node": 1}),
        ("doctor.driven_by", {"drivers": ("net_ice",)}),
    ]
    assert found["memory"].found.arguments == {
        "available_mib": 88888888 >> 10,
        "needed_mib": 3 << 10,
    }
    assert found["cores"].found.arguments == {"cores": 16, "nodes": 2}
    put(healthy / "proc/cpuinfo", "flags : avx2\n")
    flags = by_name(healthy)["cpu"].found.arguments["flags"]
    assert isinstance(flags, tuple)
    assert [one.code for one in flags if isinstance(one, Finding)] == [
        "doctor.cpu_has",
        "doctor.cpu_lacks",
        "doctor.cpu_lacks",
    ]


def test_the_table_reads_as_before_findings(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(healthy / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n")
    checks = list(by_name(healthy).values())
    monkeypatch.setattr(doctor_command, "all_checks", lambda **_: checks)
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor_command.run() == int(any(check.level == "fail" for check in checks))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "ok NIC drivers 1 (1 PCI IDs): net_ice",
        "ok 0000:3b:00.0 8086:1592, bound to vfio-pci, NUMA node 1, driven by net_ice",
        "ok IOMMU/VFIO 1 IOMMU groups, vfio-pci loaded",
        "warn hugepages 4096 pages of 2 MiB, 12 free, 512 needed",
        "-> correct but slower without: `scripts/hugepages reserve 4596`",
        "ok hugetlbfs mounted at /dev/hugepages",
        "ok memory 86805 MiB available, 1024 MiB needed",
        "ok cpu avx2 yes, pclmulqdq yes, avx512f yes",
        "ok rights may open packet sockets",
    ):
        assert line in lines
