"""Chains on this machine that capture a port, found by their capture processes, and what their
rings have counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from flowcheck.config import SourceConfig
from flowcheck.errors import FlowCheckError
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind
from flowcheck.plane.frame_sources.dpdk_eal import parse_device
from flowcheck.plane.shared_memory.flow_table import FlowTable, flow_key
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.packet_capture.capture_file import ring_numbers
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.traffic.observed_messages import FlowKey

PROC = Path("/proc")
STAGE_WORDS = ["stage", "capture"]
"""Words of a capture process's command line (stage_table.py)."""


class CapturingChain:
    """A chain that captures a port. Its rings are only read."""

    def __init__(self, run: Path, number: int, source: SourceConfig) -> None:
        """number: of the source in the chain's job file."""
        self.run, self.number, self.source = run, number, source

    def counters(self) -> dict[str, dict[str, int]]:
        """{stage: {counter: sum over the source's rings}} of capture and parser. Raises
        FlowCheckError where the rings cannot be read."""
        total: dict[str, dict[str, int]] = {"capture": {}, "parse": {}}
        for ring in self._rings():
            for stage, counters in total.items():
                for name, value in ring.counters()[stage].items():
                    counters[name] = counters.get(name, 0) + value
        return total

    def flows(self) -> dict[FlowKey, np.void]:
        """A copy of each record of its flow tables; of a flow on two rings that of the last."""
        found: dict[FlowKey, np.void] = {}
        run = RunDir(self.run)
        for number in ring_numbers(run.settings(), self.number):
            with FlowTable.open(run.flows(number)) as table:
                copied = table.flows().copy()
            found |= {flow_key(record): record for record in copied}
        return found

    def _rings(self) -> Iterator[FrameRing]:
        run = RunDir(self.run)
        with ExitStack() as opened:
            for number in ring_numbers(run.settings(), self.number):
                yield opened.enter_context(FrameRing.open(run.ring(number)))


def chain_at(port: NamedPort, proc: Path = PROC) -> CapturingChain | None:
    """The chain that captures a port of this machine and network namespace; None: there is none,
    or its run directory cannot be read by this user."""
    if not port.live:
        return None
    for process, run, number in _capture_processes(proc):
        with suppress(FlowCheckError, OSError, IndexError):
            source = RunDir(run).settings().source[number]
            if _is_at(source, port) and _same_namespace(process, proc):
                return CapturingChain(run, number, source)
    return None


def _is_at(source: SourceConfig, port: NamedPort) -> bool:
    device = parse_device(source.vdev) if source.vdev is not None else None
    if port.kind is PortKind.PCI:
        return source.pci is not None and parse_device(source.pci).name == port.name
    return port.name in (source.interface, device.interface if device is not None else None)


def _capture_processes(proc: Path) -> Iterator[tuple[Path, Path, int]]:
    """(process's folder, run directory, number of the source) of each capture of a chain."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
            at = words.index(STAGE_WORDS[0])
            if words[at : at + 2] != STAGE_WORDS:
                continue
            run = Path(words[words.index("--run") + 1])
            number = int(words[words.index("--number") + 1]) if "--number" in words else 0
            yield folder, run if run.is_absolute() else _folder_of(folder) / run, number


def _folder_of(process: Path) -> Path:
    return (process / "cwd").readlink()


def _same_namespace(process: Path, proc: Path) -> bool:
    """Whether a process is in our network namespace; True where the kernel does not tell."""
    try:
        return (proc / "self/ns/net").readlink() == (process / "ns/net").readlink()
    except OSError:
        return True
