"""The classifier that drops copies: a BPF program that counts every frame of the monitor port and
drops the n-th if a hash of seed and n says so.

The hash is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
2014, figure 16), so which frames are dropped follows from seed and order, and from no state of the
kernel.
"""

from __future__ import annotations

from flowcheck.lab.mirror_loss.bpf_syscalls import INSTRUCTION

GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None))
"""SplitMix64: (shift, factor) of each round; the last has no factor."""
MASK = (1 << 64) - 1
COUNTER_BYTES = 16
"""Value of the counters' map: copies, dropped copies, each u64."""
THRESHOLD_BYTES = 8
"""Value of the threshold's map: a copy is dropped if its hash is below this u64; 0: none is."""
HEAD_BYTES = 128
"""First bytes of a dropped frame that are kept: Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16, and
50 bytes of ERSPAN's outer headers."""
RECORD_BYTES = 16 + HEAD_BYTES
"""Value of the log's map: length of the frame u32, 4 unused bytes, number of the copy from 1 u64,
head."""
PASS, STOLEN = -1, 4
"""linux/pkt_cls.h TC_ACT_UNSPEC, TC_ACT_STOLEN. After TC_ACT_SHOT a sender's socket reports
ENOBUFS (net_xmit_errno), at which Open vSwitch gives up the rest of its burst; after
TC_ACT_STOLEN it reports success."""
# linux/bpf.h and linux/bpf_common.h.
R0, R1, R2, R3, R4, R6, R7, R8, R9, R10 = 0, 1, 2, 3, 4, 6, 7, 8, 9, 10
MOV, MOV_IMM, ADD, ADD_IMM, MUL, XOR, RSH_IMM = 0xBF, 0xB7, 0x0F, 0x07, 0x2F, 0xAF, 0x77
LOAD64, LOAD32, STORE32, STORE64, STORE32_IMM = 0x79, 0x61, 0x63, 0x7B, 0x62
ATOMIC64, FETCH_ADD = 0xDB, 0x01
IMM64, CALL, EXIT = 0x18, 0x85, 0x95
JUMP_EQ_IMM, JUMP_GE_IMM, JUMP_GE, JUMP_LE_IMM = 0x15, 0x35, 0x3D, 0xB5
MAP_FD = 1  # BPF_PSEUDO_MAP_FD
MAP_LOOKUP_HELPER, SKB_LOAD_BYTES_HELPER = 1, 26


class Assembler:
    """Instructions with jumps to names."""

    def __init__(self) -> None:
        self._code: list[list[int]] = []
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}

    def add(self, code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> None:
        """One instruction: destination and source register, offset, immediate."""
        self._code.append([code, to | of << 4, offset, value])

    def constant(self, to: int, value: int, of: int = 0) -> None:
        """A 64-bit constant, or with `of` a map; it takes two instructions."""
        self.add(IMM64, to, of, value=_signed(value))
        self.add(0, value=_signed(value >> 32))

    def jump(self, code: int, to: int, label: str, *, of: int = 0, value: int = 0) -> None:
        """A jump forward."""
        self._jumps.append((len(self._code), label))
        self.add(code, to, of, value=value)

    def label(self, name: str) -> None:
        """Names the next instruction."""
        self._labels[name] = len(self._code)

    def assembled(self) -> bytes:
        """The program."""
        for at, label in self._jumps:
            self._code[at][2] = self._labels[label] - at - 1
        return b"".join(INSTRUCTION.pack(*one) for one in self._code)


def _signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def mixed(state: int) -> int:
    """SplitMix64's output of a state."""
    for shift, factor in MIX:
        state ^= state >> shift
        state = state * (1 if factor is None else factor) & MASK
    return state


def threshold_of(probability: float) -> int:
    """Hashes below it are dropped. probability: 0 to less than 1."""
    return int(probability * 2**64)


def drop_program(counters: int, threshold: int, log: int, entries: int, seed: int) -> bytes:
    """Instructions. counters, threshold, log: file descriptors of the maps; entries: of the log."""
    make = Assembler()
    make.add(MOV, R6, R1)
    _lookup(make, counters, MOV_IMM)
    make.jump(JUMP_EQ_IMM, R0, "pass")
    make.add(MOV, R7, R0)
    _count(make, 0)
    make.add(ADD_IMM, R8, value=1)
    make.add(STORE64, R10, R8, -16)
    _hash(make, mixed(seed & MASK))
    _lookup(make, threshold, MOV_IMM)
    make.jump(JUMP_EQ_IMM, R0, "pass")
    make.add(LOAD64, R1, R0, 0)
    make.jump(JUMP_GE, R9, "pass", of=R1)
    _count(make, 8)
    make.jump(JUMP_GE_IMM, R8, "drop", value=entries)
    _lookup(make, log, MOV)
    make.jump(JUMP_EQ_IMM, R0, "drop")
    _keep_head(make)
    make.label("drop")
    make.add(MOV_IMM, R0, value=STOLEN)
    make.add(EXIT)
    make.label("pass")
    make.add(MOV_IMM, R0, value=PASS)
    make.add(EXIT)
    return make.assembled()


def _count(make: Assembler, offset: int) -> None:
    """R8: the counter at R7 + offset, before it is raised by 1 for all processors."""
    make.add(MOV_IMM, R8, value=1)
    make.add(ATOMIC64, R7, R8, offset, FETCH_ADD)


def _lookup(make: Assembler, map_fd: int, move: int) -> None:
    """R0: the map's value 0, or with `move` of a register the value R8."""
    make.add(move, R1, R8 if move == MOV else 0)
    make.add(STORE32, R10, R1, -4)
    make.add(MOV, R2, R10)
    make.add(ADD_IMM, R2, value=-4)
    make.constant(R1, map_fd, MAP_FD)
    make.add(CALL, value=MAP_LOOKUP_HELPER)


def _hash(make: Assembler, start: int) -> None:
    """R9: SplitMix64 of start + R8 * GOLDEN."""
    make.add(MOV, R9, R8)
    make.constant(R1, GOLDEN)
    make.add(MUL, R9, R1)
    make.constant(R1, start)
    make.add(ADD, R9, R1)
    for shift, factor in MIX:
        make.add(MOV, R1, R9)
        make.add(RSH_IMM, R1, value=shift)
        make.add(XOR, R9, R1)
        if factor is not None:
            make.constant(R1, factor)
            make.add(MUL, R9, R1)


def _keep_head(make: Assembler) -> None:
    """Length, number and first bytes of the frame R6 into the record R0."""
    make.add(MOV, R9, R0)
    make.add(LOAD32, R4, R6, 0)  # struct __sk_buff: len
    make.add(STORE32, R9, R4, 0)
    make.add(LOAD64, R1, R10, -16)
    make.add(STORE64, R9, R1, 8)
    make.jump(JUMP_EQ_IMM, R4, "drop")
    make.jump(JUMP_LE_IMM, R4, "fits", value=HEAD_BYTES)
    make.add(MOV_IMM, R4, value=HEAD_BYTES)
    make.label("fits")
    make.add(MOV, R1, R6)
    make.add(MOV_IMM, R2, value=0)
    make.add(MOV, R3, R9)
    make.add(ADD_IMM, R3, value=16)
    make.add(CALL, value=SKB_LOAD_BYTES_HELPER)
