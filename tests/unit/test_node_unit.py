"""The systemd unit, as systemd itself reads it, and what it must never say."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NODE = Path(__file__).resolve().parents[2] / "scripts" / "node"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
EXPOSURE_MAX = 6.0
"""What root with the rights a capture needs comes to, and a little; the score is no aim: what
raises it further takes /dev/vfio and shared memory away."""
HARMFUL = {
    "DynamicUser": "its /dev/shm is wiped",
    "RemoveIPC": "its /dev/shm is wiped",
    "PrivateIPC": "shared memory of another chain is not seen",
    "PrivateDevices": "no /dev/vfio",
    "ProtectClock": "closes every device but those listed",
    "MemoryDenyWriteExecute": "torch compiles kernels",
    "PrivateNetwork": "no NIC",
    "RestrictRealtime": "capture goes before other work",
    "ProtectKernelTunables": "uio writes below /sys",
}


def installed(folder: Path, *, harm: tuple[str, str] = ("", "")) -> Path:
    """An instance of the unit that runs this very Python."""
    text = (NODE / "flowcheck@.service").read_text().replace("@FLOWCHECK@", sys.executable)
    path = folder / "flowcheck@job.service"
    path.write_text(text.replace(*harm) if harm[0] else text)
    return path


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, words)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@needs_systemd
def test_systemd_has_nothing_to_say_of_the_unit_and_would_of_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "flowcheck@job.service.d").mkdir()
    shutil.copy(NODE / "cores.conf", tmp_path / "flowcheck@job.service.d" / "cores.conf")
    done = analyze("verify", installed(tmp_path))
    assert done.returncode == 0 and not done.stderr, done.stderr
    wrong = analyze("verify", installed(tmp_path, harm=("KillMode=mixed", "KilMode=mixed")))
    assert "KilMode" in wrong.stderr, "or the first half proves nothing"
    drop_in = tmp_path / "flowcheck@job.service.d" / "cores.conf"
    drop_in.write_text(drop_in.read_text().replace("CPUAffinity=2-9", "CPUAffinity=two"))
    assert "CPU affinity" in analyze("verify", installed(tmp_path)).stderr


@needs_systemd
def test_its_exposure_is_no_worse_than_it_was(tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", installed(tmp_path))
    matched = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert matched is not None, done.stdout + done.stderr
    assert float(matched[1]) <= EXPOSURE_MAX
    checks = analyze("security", "--offline=true", "--json=short", installed(tmp_path))
    assert json.loads(checks.stdout)


def service() -> dict[str, str]:
    """[Service] of the unit; the last of lines of one name."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(NODE / "flowcheck@.service")
    return dict(parser["Service"])


def test_stopping_it_neither_cuts_the_rings_off_nor_takes_the_replica_away() -> None:
    said = service()
    assert said["KillMode"] == "mixed", "SIGTERM to every stage loses what lies in the rings"
    assert said["RuntimeDirectoryPreserve"] == "yes"
    assert said["Type"] == "notify" and said["NotifyAccess"] == "main"
    assert said["RestartPreventExitStatus"] == "2"
    assert said["LimitMEMLOCK"] == "infinity"
    assert said["ProtectSystem"] != "strict", "hugetlbfs and checkpoints are written to"
    assert not {name: why for name, why in HARMFUL.items() if name in said}
