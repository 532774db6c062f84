"""DPDK's environment (EAL): device arguments, memory need, start, once per process."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowcheck import private_files
from flowcheck._core import ffi as core_ffi
from flowcheck.errors import CaptureError, refusal_of
from flowcheck.findings.catalog.shared_memory_files import DPDK_WITHOUT_HUGE_PAGES
from flowcheck.findings.catalog.starting_a_chain import DPDK_NOT_BUILT
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.shared_memory_location import huge_bytes_free

BLOCK_BYTES = 65536
"""Bytes of a block of af_packet's ring, a whole number of frames of FRAME_ROOM_BYTES: eight."""
FRAME_ROOM_BYTES = 8192
"""Bytes: path MTU 4096 with headers and encapsulation fits. af_packet's own default of 2,048 cuts
every longer frame to 1,982 bytes and calls it good."""

MBUF_ROOM_BYTES = FRAME_ROOM_BYTES
"""af_packet wants room for its whole frame; a frame of path MTU 4096 fits in one segment."""

MBUF_OVERHEAD_BYTES = 128 + 128 + 64
"""rte_mbuf, headroom, mempool header and padding."""

EAL_BYTES = 96 << 20
"""Bytes, rounded up, that the EAL, its drivers and a dmadev take beside the packet buffers. A
choice: more asks for memory in vain, less fails at start."""

FRAMES = 16384
"""Frames in the kernel's ring, per queue: 128 MiB, about 10 ms at 100 Gb/s. With 4,096 a busy
machine dropped 2,394 of 253,625."""

PCI = re.compile(r"(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(-q\d+)?")
"""dma_idxd makes one engine per work queue, named after the address: 0000:6a:01.0-q0."""


@dataclass(frozen=True, slots=True)
class Device:
    """A port or a copy engine as the EAL is told of it: `name,key=value,...`."""

    name: str
    options: tuple[str, ...] = ()

    @property
    def is_pci(self) -> bool:
        return PCI.fullmatch(self.name) is not None

    @property
    def driver(self) -> str:
        """`net_af_packet` of `net_af_packet0`; empty for a PCI address."""
        return "" if self.is_pci else self.name.rstrip("0123456789")

    @property
    def argument(self) -> str:
        """What the EAL is given, after -a or --vdev=."""
        matched = PCI.fullmatch(self.name)
        name = self.name.removesuffix(matched[3] or "") if matched else self.name
        return ",".join((name, *self.options))

    def values(self, key: str) -> list[str]:
        return [text.partition("=")[2] for text in self.options if text.startswith(f"{key}=")]

    @property
    def files(self) -> list[Path]:
        """The capture files a net_pcap reads, one per queue; empty for live sources."""
        return [Path(path) for path in self.values("rx_pcap")]

    @property
    def interface(self) -> str | None:
        """The kernel interface an af_packet device listens on."""
        named = self.values("iface") if self.driver == "net_af_packet" else []
        return named[0] if named else None


def parse_device(text: str) -> Device:
    """A device as the operator writes it; what af_packet needs to keep frames whole is added."""
    name, *options = text.strip().split(",")
    matched = PCI.fullmatch(name.lower())
    if matched:
        address = f"{matched[1] or '0000'}:{matched[2]}{matched[3] or ''}"
        return Device(address, tuple(options))
    device = Device(name, tuple(options))
    if device.driver == "net_af_packet":
        given = {option.partition("=")[0] for option in options}
        wanted = {"blocksz": BLOCK_BYTES, "framesz": FRAME_ROOM_BYTES, "framecnt": FRAMES}
        options += [f"{key}={value}" for key, value in wanted.items() if key not in given]
    return Device(name, tuple(options))


def dpdk() -> tuple[Any, Any]:
    """(ffi, lib) of the capture module. Raises CaptureError where it was not built."""
    try:
        from flowcheck._dpdk import ffi, lib
    except ImportError as error:
        raise CaptureError(errno.ENOENT, DPDK_NOT_BUILT(error)) from error
    private_files.pass_trusted_users_to_c(lib)
    return ffi, lib


RUNTIME = "RUNTIME_DIRECTORY"
"""systemd's, which DPDK asks for first."""


def check_dpdk(code: int, subject: object) -> int:
    """`code`, or CaptureError with the reason that the capture module left. subject: the device or
    file that was to be used."""
    if code < 0:
        raise CaptureError(-code, refusal_of(*dpdk(), -code, subject))
    return code


def pointer(handle: Any) -> Any:
    """A struct of the plain module as the capture module names it: the same bytes."""
    ffi, _ = dpdk()
    name = core_ffi.typeof(handle).item.cname
    return ffi.cast(f"{name} *", int(core_ffi.cast("uintptr_t", handle)))


@dataclass(frozen=True, slots=True)
class EalArguments:
    """How DPDK was started."""

    arguments: tuple[str, ...]
    huge_pages: bool
    why: Finding | None
    """Why it runs slower than it could; None: it does not."""


def dpdk_memory_need(mbufs: int) -> int:
    """Bytes DPDK needs for `mbufs` packet buffers and itself."""
    return mbufs * (MBUF_ROOM_BYTES + MBUF_OVERHEAD_BYTES) + EAL_BYTES


def eal_arguments(devices: Sequence[Device], mbufs: int, extra: Sequence[str] = ()) -> EalArguments:
    """The EAL's arguments: only the named devices, nothing left behind in the file system."""
    need = dpdk_memory_need(mbufs)
    huge = huge_bytes_free() >= need
    cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    # One lcore floating over our CPUs: the loops run on threads of ours, and a
    # pinned main thread would hand its single CPU down to every later thread.
    arguments = ["flowcheck", f"--lcores=0@({cpus})", "--no-telemetry"]
    if huge:
        arguments += ["--in-memory"]
    else:
        arguments += ["--no-huge", "--no-shconf", "-m", str(need >> 20)]
    if not any(device.is_pci for device in devices):
        arguments += ["--no-pci"]
    told = {device.argument: device.is_pci for device in devices}  # two queues, one device
    for argument, is_pci in told.items():
        arguments += ["-a", argument] if is_pci else [f"--vdev={argument}"]
    why = None
    if not huge:
        why = DPDK_WITHOUT_HUGE_PAGES(need_mib=need >> 20, free_mib=huge_bytes_free() >> 20)
    return EalArguments((*arguments, *extra), huge, why)


def start_eal(env: EalArguments) -> None:
    """Starts DPDK in this process, once. The caller's CPU affinity is left as it was."""
    ffi, lib = dpdk()
    texts = [ffi.new("char[]", argument.encode()) for argument in env.arguments]
    affinity = os.sched_getaffinity(0)
    try:
        with _runtime_folder():
            check_dpdk(lib.fc_eal_start(len(texts), ffi.new("char *[]", texts)), "DPDK")
    finally:
        os.sched_setaffinity(0, affinity)


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """A folder of this process's own for what DPDK makes while it starts, and reads no more with
    these arguments. Its own choice is one name below /tmp for all users, and stays there
    (lib/eal/unix/eal_filesystem.c, eal_create_runtime_dir)."""
    before = os.environ.get(RUNTIME)
    with tempfile.TemporaryDirectory(prefix="flowcheck-dpdk-") as folder:
        os.environ[RUNTIME] = folder
        try:
            yield
        finally:
            del os.environ[RUNTIME]
            if before is not None:
                os.environ[RUNTIME] = before
