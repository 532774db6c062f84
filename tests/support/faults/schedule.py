"""What a schedule of faults says: as a value, as JSON, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

ENDS_AFTER = 1.0
"""`at` beyond this: in the stage's end, when the checkpoint is written."""
AS_IT_STARTS = -1.0
"""`at` of a fault that hits a process before its first turn."""

FrameKind = Literal[
    "lose",  # `count` frames of the job in a row
    "lose firsts",  # packets that begin a message, `count` of them
    "damage",  # bits of `count` frames flip on the way: their check sum no longer fits
    "shorten",  # `count` frames are cut off, as by a capture program's snap length
    "cut head",  # the capture begins behind `at` of its frames
    "cut tail",  # the capture ends there
    "repeat",  # `count` frames come again, up to `reach` frames later
    "differ",  # a copy of `count` frames with other payload, `reach` frames away at most
    "reorder",  # every frame may move by up to `reach` places
    "delay",  # `count` packets that begin a message come up to `reach` frames late
    "strangers",  # another tenant's transfers, `count` messages, whose first packets may lack
    "acknowledgements",  # `count` ACKs of queue pairs that nobody has
    "sends",  # `count` SENDs to queue pairs of the job
    "forge old",  # `count` packets of the job's queue pairs with numbers long passed
    "forge ahead",  # `count` packets with numbers far ahead
    "forge owner",  # `count` whole messages from number 0 on, with another key and address
    "clock back",  # time stamps jump back by `reach` seconds at `at`
    "clock forth",  # ... and forth
    "clock stands",  # all frames have one time
]
LOSSES = ("lose", "lose firsts", "damage", "shorten", "cut head", "cut tail")
"""After these a byte may be nowhere."""
CLOCKS = ("clock back", "clock forth")
"""After these time stamps say that a mirror was blind for so long, or that frames are older."""
TENANTS = ("strangers", "sends")
"""These begin messages of other queue pairs."""
MOVES = ("reorder", "delay")
"""After these a packet may come behind others of its queue pair."""
DOUBTS = ("differ", "forge old", "forge ahead", "forge owner")
"""After these two packets claim one place."""

OVERHEAD_BYTES = 256
"""At most, of a slot's own header and of all headers that a mirror leaves about a payload."""

Stage = Literal["capture", "parse", "extract", "update", "supervisor"]
Damage = Literal["truncate", "flip", "empty", "remove", "append"]


class FrameFault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the frames before they were captured."""

    kind: FrameKind
    at: float = 0.0
    """Where, as a share of the capture."""
    count: int = 1
    reach: int = 0
    file: int = 0
    """Which capture; one that is not there: modulo the number of captures."""
    seed: int = 0
    """Of what is left to chance."""


class ProcessFault(msgspec.Struct, frozen=True, kw_only=True):
    """A signal to a process, where its own progress in shared memory has come to."""

    stage: Stage
    number: int = 0
    """Of the ring, for capture and parse."""
    action: Literal["kill", "stop"]
    at: float
    """Share of the stage's frames, or of the job's steps for update."""
    after_us: int = 0
    """From the turn that finds the position passed to the signal: it hits inside the work."""
    stands_ms: int = 0
    """Until a stopped process goes on."""


class Torn(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a killed chain left, damaged before the next one begins."""

    file: str
    """A pattern below the run directory or, beginning with out/, below the checkpoints."""
    how: Damage
    at: float = 0.5


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and disks of the chain."""

    slots: int = 256
    slot_bytes: int = 4352
    staging_bytes: int = 8 << 20
    run_kib: int = 0
    """Of the file system of the run directory; 0: the machine's own."""
    out_kib: int = 0
    """Of that of the checkpoints."""
    memory_mib: int = 0
    """Of shared memory."""
    spans: tuple[int, int, int] = (4096, 4096, 4096)
    """Most frames of a turn of capture, parser and extractor."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The training job on the wire; see the fields of the same names in support.netib.options."""

    seed: int
    ranks: int
    channels: int
    qps: int
    protocol: Literal["LL", "LL128", "Simple"]
    version: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    caps_bytes: tuple[int, int]
    steps: int
    mtu: int
    ipv6: bool = False
    adaptive: bool = False
    metric_every: int = 0
    retransmits: int = 0
    mirrored: tuple[int, ...] = (0,)
    directions: Literal["both", "tx", "rx"] = "both"
    wrap: str = ""
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """All that is done in one run of the whole chain."""

    seed: int
    job: Job
    room: Room = Room()
    frames: tuple[FrameFault, ...] = ()
    processes: tuple[ProcessFault, ...] = ()
    torn: tuple[Torn, ...] = ()
    again: bool = False
    """The same command once more over what the first one left, whatever it left."""

    @property
    def harmless(self) -> bool:
        """Nothing in it may cost a step: every byte is captured once at least, no packet claims
        what another one is, and there is room for all."""
        roomy = not (self.room.run_kib or self.room.out_kib or self.room.memory_mib or self.torn)
        return (
            roomy
            and self.room.staging_bytes >= 8 << 20
            and self.room.slots >= 16
            and self.room.slot_bytes >= self.job.mtu + OVERHEAD_BYTES
            and remembered(self.frames, self.room.slots, 2 * self.job.channels * self.job.qps)
            and self.job.directions == "both"
            and harmless_frames(self.frames)
        )


def harmless_frames(frames: Sequence[FrameFault]) -> bool:
    """Every byte is captured once at least, no packet claims what another one is, and no time
    stamp says that a mirror was blind."""
    return all(fault.kind not in LOSSES + DOUBTS + CLOCKS for fault in frames)


def remembered(frames: Sequence[FrameFault], slots: int, flows: int, own: int = 0) -> bool:
    """Whether the record of a message is there until its last packet (fc_message_pool.c): others
    begin fewer messages meanwhile than are remembered in any case, or packets come in order and
    there is twice the room to hold what the flows have open. own: messages of the job itself that
    may begin between two packets of one."""
    begun = sum(fault.count for fault in frames if fault.kind in TENANTS)
    reach = max((fault.reach for fault in frames if fault.kind not in CLOCKS), default=0)
    in_order = all(fault.kind not in MOVES for fault in frames)
    return own + begun + reach < slots // 2 or (
        in_order and 2 * flows <= slots // 4 and reach < slots // 2
    )


def encoded(schedule: msgspec.Struct) -> bytes:
    """As JSON that a person may edit."""
    return msgspec.json.format(msgspec.json.encode(schedule), indent=1)


def table(schedule: Schedule) -> str:
    """One line for the job, one for the room, one for each fault."""
    lines = [f"seed {schedule.seed}"]
    for name, value in (("job", schedule.job), ("room", schedule.room)):
        lines.append(f"  {name:9} {told(value)}")
    for fault in schedule.frames:
        lines.append(f"  frames    {fault.kind:17} {told(fault, 'kind')}")
    for one in schedule.processes:
        named = f"{one.action} {one.stage}"
        lines.append(f"  process   {named:17} {told(one, 'action', 'stage')}")
    for torn in schedule.torn:
        lines.append(f"  torn      {torn.how:17} {told(torn, 'how')}")
    if schedule.again:
        lines.append("  again     the same command over what the first one left")
    return "\n".join(lines)


def told(value: msgspec.Struct, *without: str) -> str:
    """Its fields, in one line."""
    fields = msgspec.structs.asdict(value)
    return " ".join(f"{name}={fields[name]}" for name in fields if name not in without)
