"""Where copies of a gradient's bytes differ: the list that the extractor keeps of each generation
of the shard (`struct fc_differing`), as other code reads it."""

from __future__ import annotations

from dataclasses import dataclass

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.gradient_double_buffer import TO_APPLY, GradientShard
from flowcheck.plane.shared_memory.merged_ranges import merged_spans
from flowcheck.wire.traffic.observed_messages import Range

READ_ATTEMPTS = 100
"""Looks at a list that changes meanwhile before it is said not to be known. A choice: the extractor
adds to it for microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingRange:
    """Bytes [start, stop) of a gradient of which a later copy differs from the first one."""

    start: int
    stop: int
    first: bytes
    """Of the copy that arrived first, which is the one in the gradient: the first bytes of the
    range, as many as were kept; b"": none."""
    later: bytes
    """As many of the other copy."""
    ring: int | None
    """Number of the ring that the later copy came from; None: not known."""
    flow: int | None
    """Its flow, as that ring's flow table numbers them; None: several packets, or not known."""
    psn: int | None
    """Its unwrapped PSN, likewise."""


@dataclass(frozen=True, slots=True)
class Differences:
    """What is known of a generation's copies that differ."""

    conflict_bytes: int = 0
    rollbacks: int = 0
    """`rollback_count` at that time."""
    ranges: tuple[DifferingRange, ...] = ()
    """In order of arrival."""
    placed: bool = True
    """Whether the ranges are all that differs; else bytes may differ anywhere."""

    @property
    def spans(self) -> tuple[Range, ...]:
        """Byte ranges that differ, ascending, none touching another."""
        return merged_spans((one.start, one.stop) for one in self.ranges)

    def is_within(self, gradient_bytes: int) -> bool:
        """Whether it is known which bytes differ, and all are of the first `gradient_bytes`."""
        return self.placed and all(one.stop <= gradient_bytes for one in self.ranges)

    def is_current(self, shard: GradientShard, generation: int) -> bool:
        """Whether nothing more is known of them by now."""
        same = shard.conflict_bytes(generation) == self.conflict_bytes
        return same and (not self.conflict_bytes or shard.rollback_count == self.rollbacks)


def differences(shard: GradientShard, generation: int) -> Differences:
    """Of a generation, as known now."""
    if not shard.conflict_bytes(generation):
        return Differences(rollbacks=shard.rollback_count)
    for _ in range(READ_ATTEMPTS):
        found = _read(shard, generation)
        if found is not None and found.is_current(shard, generation):
            return found
    return Differences(shard.conflict_bytes(generation), shard.rollback_count, placed=False)


def is_undecided(shard: GradientShard, generation: int) -> bool:
    """Whether copies of a generation differ that the updater did not know of when it used it, and
    has not decided on since."""
    handed_on = shard.generation_state(generation) in TO_APPLY
    return (
        handed_on
        and shard.conflict_bytes(generation) > 0
        and not shard.is_judged(generation)
        and not shard.is_conflicting(generation)
    )


def _read(shard: GradientShard, generation: int) -> Differences | None:
    """None: it changed meanwhile."""
    rollbacks, conflict_bytes = shard.rollback_count, shard.conflict_bytes(generation)
    used = int(lib.fc_shard_differing_used(shard.handle, generation))
    if used > lib.FC_DIFFERING_BYTES:
        return None
    raw = bytes(ffi.buffer(lib.fc_shard_differing(shard.handle, generation), used))
    ranges: list[DifferingRange] = []
    at, head = 0, ffi.sizeof("struct fc_differing")
    while at < used:
        if at + head > used:
            return None
        one = ffi.from_buffer("struct fc_differing *", raw[at : at + head])[0]
        kept, each = int(one.kept_bytes), -(-int(one.kept_bytes) // 8) * 8
        start, stop, at = int(one.start_byte), int(one.stop_byte), at + head
        if not start < stop <= shard.gradient_bytes or at + 2 * each > used:
            return None
        ranges.append(
            DifferingRange(
                start=start,
                stop=stop,
                first=raw[at : at + kept],
                later=raw[at + each : at + each + kept],
                ring=_known(int(one.ring), lib.FC_RING_UNKNOWN),
                flow=_known(int(one.flow), 2**64 - 1),
                psn=_known(int(one.psn), 2**64 - 1),
            )
        )
        at += 2 * each
    listed = sum(one.stop - one.start for one in ranges)
    return Differences(conflict_bytes, rollbacks, tuple(ranges), placed=listed >= conflict_bytes)


def _known(value: int, unknown: int) -> int | None:
    return None if value == unknown else value
