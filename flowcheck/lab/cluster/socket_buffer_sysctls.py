"""Raises the machine's socket-buffer sysctls for Open vSwitch, and restores them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import NOT_A_SYSCTL_RECORD, SYSCTL_REFUSED
from flowcheck.lab.cluster import cluster_state_file

SYSCTL_BYTES_LEAST = {"net.core.rmem_default": 128 << 20, "net.core.rmem_max": 256 << 20}
"""Bytes. Open vSwitch reads its ports through sockets of the default buffer size, which overflow
at a few thousand frames per second; it has no setting of its own."""
RAISED_SYSCTLS_FILE = cluster_state_file.FOLDER / ".sysctls"


class RaisedSysctls(msgspec.Struct):
    """Values before the change, and the clusters that need it."""

    before: dict[str, int]
    users: list[str]


def raise_sysctls_for(name: str) -> list[str]:
    """Raises settings that are lower than SYSCTL_BYTES_LEAST, for cluster `name`; returns
    sentences about the changes."""
    record = _load() or RaisedSysctls({key: _read(key) for key in SYSCTL_BYTES_LEAST}, [])
    if name not in record.users:
        record.users.append(name)
    write_atomically(RAISED_SYSCTLS_FILE, msgspec.json.encode(record), durable=False)
    said = []
    for key, wanted in SYSCTL_BYTES_LEAST.items():
        if _read(key) < wanted:
            _write(key, wanted)
        if record.before[key] < wanted:
            said.append(f"{key} = {wanted} (was {record.before[key]})")
    return said


def restore_sysctls(name: str) -> list[str]:
    """Restores the settings if no other cluster needs them; returns sentences about what was
    restored, and what was not and why."""
    record = _load()
    if record is None or name not in record.users:
        return []
    record.users.remove(name)
    if record.users:
        write_atomically(RAISED_SYSCTLS_FILE, msgspec.json.encode(record), durable=False)
        return []
    said = []
    for key, before in record.before.items():
        now = _read(key)
        if now == SYSCTL_BYTES_LEAST[key] and now != before:
            _write(key, before)
            said.append(f"{key} = {before} again")
        elif now != before:
            said.append(f"{key} is {now}, which somebody else set: left alone")
    RAISED_SYSCTLS_FILE.unlink()
    return said


def _load() -> RaisedSysctls | None:
    RAISED_SYSCTLS_FILE.with_name(f".{RAISED_SYSCTLS_FILE.name}.new").unlink(missing_ok=True)
    try:
        return msgspec.json.decode(RAISED_SYSCTLS_FILE.read_bytes(), type=RaisedSysctls)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FlowCheckError(NOT_A_SYSCTL_RECORD(path=RAISED_SYSCTLS_FILE, error=error)) from error


def _file(key: str) -> Path:
    return Path("/proc/sys") / key.replace(".", "/")


def _read(key: str) -> int:
    return int(_file(key).read_text())


def _write(key: str, value: int) -> None:
    try:
        _file(key).write_text(str(value))
    except OSError as error:
        what = SYSCTL_REFUSED(key=key, value=value, error=error.strerror)
        raise FlowCheckError(what) from error
