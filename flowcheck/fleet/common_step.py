"""The newest step that all shards of a fleet have, of one life of the training job.

A job that restarts goes back to an earlier step and makes the steps behind it anew: they have the
same numbers and other states. Chains hear of that at different times, and one that is gone never.
So a number that two machines have in common says nothing by itself:

- The newest life that any chain tells of counts. A state of the life before it counts up to the
  step that the newest one began with, which both have in their past; no state of a still earlier
  life does, nor one whose life nobody knows.
- Two chains whose lives have one number and began differently count them from different starts (a
  chain that joined a job midway counts from there): nothing says which of them are the same.
- Of one shard, all chains that have a step must have the same state there, by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowcheck.findings.catalog.fleet_running import (
    LIVES_DIFFER,
    LIVES_UNKNOWN,
    NO_COMMON_STEP,
    STATES_OF_STEP_DIFFER,
)
from flowcheck.findings.finding import Finding


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of the training job, as a chain counts them (job_life.py of the stages)."""

    number: int
    origin: int
    """The step that it began with."""
    base: int | None = None
    """The step of the trainer's checkpoint that told the chain where it is; None: it follows the
    job since its start."""

    @property
    def told(self) -> str:
        """For an error."""
        since = f"step {self.origin}" if self.base is None else f"a checkpoint of step {self.base}"
        return f"{self.number} (from {since} on)"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that gives steps of a shard."""

    name: str
    of: str | None
    """Name of the chain that it copies; None: it captures."""
    node: str
    life: Life | None
    """That all of its states are of, or began with; None: nobody knows."""
    steps: dict[int, str]
    """{exact step that it gives: digest of the state, in hex}"""


class CommonStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of all shards."""

    step: int
    holders: dict[str, tuple[Holder, ...]]
    """{shard: who gives it, the chain that captures first}"""
    life: Life | None
    """None: it was not asked for."""

    def digest(self, shard: str) -> str:
        """Of the shard's state."""
        return self.holders[shard][0].steps[self.step]


def common_step(
    shards: Mapping[str, Sequence[Holder]],
    *,
    wanted: int | None = None,
    despite_lives: bool = False,
) -> CommonStep | Finding:
    """The newest step of one life that each shard has, or why there is none.

    shards: {shard: those that answer}. wanted: this step, and no other one. despite_lives: lives
    are not compared; the states of one shard are, all the same.
    """
    shards = {shard: _as_its_chain(holders) for shard, holders in shards.items()}
    every = [one for holders in shards.values() for one in holders if one.steps]
    if len(shards) == 1 and all(one.life is None for one in every):
        despite_lives = True  # there is nothing to be put together
    life = None if despite_lives else _newest(every)
    if isinstance(life, Finding):
        return life
    counts = {
        shard: [_counted(one, life, despite_lives=despite_lives) for one in holders]
        for shard, holders in shards.items()
    }
    each = [{step for one in holders for step in one.steps} for holders in counts.values()]
    common = set.intersection(*each) if each else set[int]()
    if wanted is not None:
        common &= {wanted}
    differing: Finding | None = None
    for step in sorted(common, reverse=True):
        found = {
            shard: tuple(
                sorted((o for o in holders if step in o.steps), key=lambda o: o.of is not None)
            )
            for shard, holders in counts.items()
        }
        apart = [shard for shard, own in found.items() if len({o.steps[step] for o in own}) > 1]
        if not apart:
            return CommonStep(step=step, holders=found, life=life)
        nodes = tuple(one.node for one in found[apart[0]])
        differing = differing or STATES_OF_STEP_DIFFER(chain=apart[0], step=step, nodes=nodes)
    if differing is not None:
        return differing
    if despite_lives or isinstance(common_step(shards, wanted=wanted, despite_lives=True), Finding):
        return NO_COMMON_STEP()
    return (LIVES_UNKNOWN if life is None else LIVES_DIFFER)(_told_all(every))


def _as_its_chain(holders: Sequence[Holder]) -> list[Holder]:
    """Where a shard's chain answers, a copy whose life does not follow from the chain's counts only
    with the states that the chain has too."""
    first = next((one for one in holders if one.of is None and one.life and one.steps), None)
    if first is None or first.life is None:
        return list(holders)
    own, found = first.life, list[Holder]()
    for one in holders:
        if _follows(one.life, own):
            found.append(one)
            continue
        equal = {s: d for s, d in one.steps.items() if first.steps.get(s) == d}
        found.append(msgspec.structs.replace(one, steps=equal, life=own))
    return found


def _follows(life: Life | None, own: Life) -> bool:
    """Whether a copy's life is its chain's, the one before that, or a later one: that is one by
    which a chain that was cut off turns out to be behind."""
    if life is None or (life.base is None) != (own.base is None):
        return False
    return life == own or life.number == own.number - 1 or life.number > own.number


def _newest(every: Sequence[Holder]) -> Life | Finding | None:
    """The newest life of all; None: nobody who has a step knows its own."""
    known = [one.life for one in every if one.life is not None]
    newest = max((one.number for one in known), default=0)
    of_it = sorted({one for one in known if one.number == newest}, key=lambda o: o.told)
    starts = {one.base is None for one in known}
    if len(of_it) > 1 or len(starts) > 1:
        return LIVES_DIFFER(_told_all(every))
    return of_it[0] if of_it else None


def _counted(one: Holder, life: Life | None, *, despite_lives: bool) -> Holder:
    """With the steps that are of this life's past."""
    if despite_lives:
        return one
    last = -1
    if life is not None and one.life is not None:
        if one.life.number == life.number:
            return one
        if one.life.number == life.number - 1:
            last = life.origin
    steps = {step: digest for step, digest in one.steps.items() if step <= last}
    return msgspec.structs.replace(one, steps=steps)


def _told_all(every: Sequence[Holder]) -> tuple[str, ...]:
    return tuple(f"{o.name}: {'unknown' if o.life is None else o.life.told}" for o in every)
