"""The bpf() system call: array maps, and a program for tc. Instructions are assembled by hand: the
lab needs no compiler and no library."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import MIRROR_LOSS_REFUSED

SYSCALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
"""Number of bpf() by machine (asm/unistd_64.h, asm-generic/unistd.h)."""
# linux/bpf.h, enum bpf_cmd, bpf_map_type, bpf_prog_type.
MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD = 0, 1, 2, 5
MAP_TYPE_ARRAY, PROG_TYPE_SCHED_CLS = 2, 3
ATTRIBUTE_BYTES = 128
"""Size of the attributes that are passed, zeros behind what is set, which the kernel ignores
(bpf_check_uarg_tail_zero)."""
LOG_BYTES = 1 << 16
"""Room for the verifier's reason. A choice: a program of a hundred instructions fills less."""
INSTRUCTION = struct.Struct("<BBhi")
"""struct bpf_insn: code, destination and source register, offset, immediate."""
_libc = ctypes.CDLL(None, use_errno=True)


class ArrayMap:
    """A map of equal values, numbered from 0."""

    def __init__(self, value_bytes: int, entries: int) -> None:
        """Raises FlowCheckError if the kernel refuses it."""
        self.value_bytes, self.entries = value_bytes, entries
        attributes = struct.pack("<5I", MAP_TYPE_ARRAY, 4, value_bytes, entries, 0)
        self.fd = _bpf(MAP_CREATE, attributes, "bpf(BPF_MAP_CREATE), an array")

    def read(self, number: int) -> bytes:
        """One value."""
        key = ctypes.c_uint32(number)
        value = ctypes.create_string_buffer(self.value_bytes)
        places = (ctypes.addressof(key), ctypes.addressof(value), 0)
        _bpf(MAP_LOOKUP, struct.pack("<IxxxxQQQ", self.fd, *places), "bpf(BPF_MAP_LOOKUP_ELEM)")
        return value.raw

    def write(self, number: int, value: bytes) -> None:
        """Replaces one value."""
        key = ctypes.c_uint32(number)
        given = ctypes.create_string_buffer(value, self.value_bytes)
        places = (ctypes.addressof(key), ctypes.addressof(given), 0)
        _bpf(MAP_UPDATE, struct.pack("<IxxxxQQQ", self.fd, *places), "bpf(BPF_MAP_UPDATE_ELEM)")

    def close(self) -> None:
        """Gives the map back to the kernel, which keeps it while a program uses it."""
        os.close(self.fd)


def load_program(instructions: bytes) -> int:
    """File descriptor of a program for tc. Raises FlowCheckError with the verifier's last line."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    license_name = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    attributes = struct.pack(
        "<IIQQIIQ",
        PROG_TYPE_SCHED_CLS,
        len(instructions) // INSTRUCTION.size,
        ctypes.addressof(code),
        ctypes.addressof(license_name),
        1,
        LOG_BYTES,
        ctypes.addressof(log),
    )
    return _bpf(PROG_LOAD, attributes, "bpf(BPF_PROG_LOAD), a classifier", log)


def _bpf(
    command: int, attributes: bytes, what: str, log: ctypes.Array[ctypes.c_char] | None = None
) -> int:
    number = SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise FlowCheckError(MIRROR_LOSS_REFUSED(what=what, error=platform.machine()))
    given = ctypes.create_string_buffer(attributes, ATTRIBUTE_BYTES)
    found = int(_libc.syscall(number, command, given, ATTRIBUTE_BYTES))
    if found < 0:
        reason = os.strerror(ctypes.get_errno())
        said = log.value.decode(errors="replace").strip().splitlines() if log else []
        reason = "; ".join([reason, *said[-2:]])
        raise FlowCheckError(MIRROR_LOSS_REFUSED(what=what, error=reason))
    return found
