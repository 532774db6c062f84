"""What the step journal keeps of a change of a replica's newest state: a line, and the bytes that
it was made with."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np

from flowcheck.replica.element_patch import ElementPatch
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.state_digest import StateId
from flowcheck.step_numbers import Step


class ChangeKind(StrEnum):
    """What changed the newest state."""

    STEP = "step"
    """The next step was made. Its bytes: the gradient, as it was applied."""
    VALUES = "values"
    """Elements took the trainer's values. Its bytes: these values, section after section."""
    TAINT = "taint"
    """Elements of the newest state turned out to be tainted since an earlier step. It has no bytes,
    and leads to the state that was there."""
    STATE = "state"
    """A trainer's checkpoint became the state. It has no bytes: the checkpoint holds them."""


class Gap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes one after another that are not kept."""

    after: StateId
    """The last state before them that entries lead to."""
    base: Step | None = None
    """A trainer's checkpoint of this step took the place of a state among them that was wrong, or
    may have been; None: none did."""
    tainted_since: Step | None = None
    """The first step since which elements turned out, among them, to be tainted; None: none did."""


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a segment."""

    before: StateId
    """The state that it was made to."""
    behind: StateId
    """The state that it led to."""
    kind: ChangeKind = ChangeKind.STEP
    gap: Gap | None = None
    """What is not kept right before this one."""
    left_out: tuple[int, ...] | None = None
    """STEP: numbers of the parameters that had no gradient; None: all always have one."""
    missing: bytes = b""
    """STEP: `Ranges` of elements that lacked a byte, as little-endian int64; TAINT: of those."""
    since: int = 0
    """TAINT: the step since which they are tainted."""
    elements: bytes = b""
    """VALUES: `Ranges` of the elements."""
    parts: dict[str, int] = {}
    """VALUES: {section: bytes of its values}"""
    exact: bool = True
    """VALUES: whether the elements are exact since, and tainted no more."""
    gives_up: bool = False
    """STATE: the replica had another state of that step, or holds it no more: its past since an
    unknown step was wrong, or may have been."""
    at: int = 0
    """Offset in the file of bytes."""
    size_bytes: int = 0
    checksum: bytes = b""
    """xxh3_128 of the bytes."""

    @property
    def step(self) -> Step:
        """The replica's step behind the change."""
        return self.behind[0]

    @property
    def lacked(self) -> Ranges:
        return _ranges(self.missing)

    def used(self, parameters: int) -> np.ndarray | None:
        """[parameters] bool: those that had a gradient; None: all."""
        if self.left_out is None:
            return None
        used = np.ones(parameters, np.bool_)
        used[[n for n in self.left_out if 0 <= n < parameters]] = False
        return used

    def patch(self, raw: np.ndarray) -> ElementPatch:
        """Of VALUES. raw: [size_bytes] its bytes."""
        parts, at = {}, 0
        for name, size_bytes in self.parts.items():
            parts[name] = raw[at : at + size_bytes]
            at += size_bytes
        return ElementPatch(_ranges(self.elements), parts)

    @property
    def healed(self) -> Ranges:
        """Elements that are tainted no more."""
        return _ranges(self.elements if self.exact else b"")


def gap_over(gap: Gap | None, line: JournalLine) -> Gap:
    """What is not kept once this change is not kept either. gap: what was not until then."""
    since = Step(line.since) if line.kind is ChangeKind.TAINT else None
    own = Gap(line.before, line.step if line.gives_up else None, since)
    return joined(joined(gap, line.gap), own) or own


def joined(gap: Gap | None, later: Gap | None) -> Gap | None:
    """Both as one."""
    if gap is None or later is None:
        return gap or later
    # From an earlier state the job went on anew: nothing that once followed that one is left.
    went_back = gap.base is None and later.after[0] < gap.after[0]
    base = later.base if gap.base is None else gap.base
    since = [one for one in (gap.tainted_since, later.tainted_since) if one is not None]
    return Gap(later.after if went_back else gap.after, base, min(since, default=None))


def step_line(
    before: StateId, behind: StateId, used: np.ndarray | None, missing: Ranges
) -> JournalLine:
    """used: [parameters] bool, those with a gradient; missing: elements that lacked a byte."""
    left_out = None if used is None else tuple(np.flatnonzero(~used).tolist())
    return JournalLine(before=before, behind=behind, left_out=left_out, missing=_raw(missing))


def values_line(
    before: StateId, behind: StateId, patch: ElementPatch, *, exact: bool
) -> JournalLine:
    """Of values that elements of the newest step took; exact: as of the line."""
    return JournalLine(
        before=before,
        behind=behind,
        kind=ChangeKind.VALUES,
        elements=_raw(patch.elements),
        parts={name: part.size for name, part in patch.parts.items()},
        exact=exact,
    )


def taint_line(newest: StateId, since: Step, elements: Ranges) -> JournalLine:
    """Of elements that turned out to be tainted since a step."""
    kind, missing = ChangeKind.TAINT, _raw(elements)
    return JournalLine(before=newest, behind=newest, kind=kind, missing=missing, since=since)


def _ranges(raw: bytes) -> Ranges:
    return np.frombuffer(raw[: len(raw) // 16 * 16], "<i8").astype(np.int64).reshape(-1, 2)


def _raw(ranges: Ranges) -> bytes:
    return ranges.astype("<i8").tobytes()
