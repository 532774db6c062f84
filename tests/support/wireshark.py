"""tshark as an independent witness, and RDMA messages put together without our parser."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROCE_AT = {0x0800: 14 + 20 + 8, 0x86DD: 14 + 40 + 8}
"""Where the BTH starts behind an EtherType, without options and tags."""


def tshark(capture: Path, *fields: str, keep: str = "frame") -> list[list[str]]:
    """One row of `fields` for every frame that passes the display filter `keep`."""
    program = shutil.which("tshark")
    if program is None:
        pytest.skip("tshark is not installed")
    wanted = [word for name in fields for word in ("-e", name)]
    done = subprocess.run(
        [program, "-n", "-r", capture, "-Y", keep, "-T", "fields", *wanted],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )
    return [line.split("\t") for line in done.stdout.splitlines()]


@dataclass
class RdmaMessage:
    """One RDMA write as its frames tell it."""

    dest_qp: int
    psn: int
    va: int
    rkey: int
    length: int
    opcodes: list[int] = field(default_factory=list)
    payload: bytes = b""
    immediate: bytes | None = None

    @property
    def flag(self) -> int:
        """The LL flag every line has. Asserts that all have the same."""
        words = struct.unpack(f"<{len(self.payload) // 4}I", self.payload)
        flags = set(words[1::2])
        assert len(flags) == 1
        return flags.pop()

    @property
    def ll_data(self) -> bytes:
        """The data words of LL lines, pad included."""
        lines = range(0, len(self.payload), 16)
        return b"".join(self.payload[n : n + 4] + self.payload[n + 8 : n + 12] for n in lines)


def rdma_messages(frames: Iterable[bytes]) -> list[RdmaMessage]:
    """Every RDMA write in order of its first frame; frames must be in order and complete."""
    messages: list[RdmaMessage] = []
    unfinished: dict[int, RdmaMessage] = {}
    for frame in frames:
        at = ROCE_AT[struct.unpack_from(">H", frame, 12)[0]]
        opcode, flags, _, dest_qp, psn = struct.unpack_from(">BBHII", frame, at)
        body = frame[at + 12 : len(frame) - 4 - (flags >> 4 & 3)]
        if not 0x06 <= opcode <= 0x0B:
            continue
        if opcode in (0x06, 0x0A, 0x0B):
            va, rkey, length = struct.unpack_from(">QII", body)
            unfinished[dest_qp] = RdmaMessage(dest_qp, psn & 0xFFFFFF, va, rkey, length)
            messages.append(unfinished[dest_qp])
            body = body[16:]
        message = unfinished[dest_qp]
        if opcode in (0x09, 0x0B):
            message.immediate, body = body[:4], body[4:]
        message.opcodes.append(opcode)
        message.payload += body
    return messages
