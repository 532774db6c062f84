"""A checkpoint's step as it was written: nothing of it is worked out anew, so that no code which
its manifest names is needed."""

from __future__ import annotations

from flowcheck.errors import StateError
from flowcheck.replica.given import Given
from flowcheck.replica.kept.snapshot import Snapshot
from flowcheck.replica.loading import Checkpoint
from flowcheck.replica.rules.stated_code import tells_code


def given_kept(kept: Checkpoint, taken: Snapshot, assumed: tuple[str, ...]) -> Given | None:
    """The step that `kept` is of; None where its rule names no code but what is stated here, and
    can be worked out. taken: the same step. Raises StateError where it was not written with its
    optimizer's groups."""
    rule, plain = taken.optimizer, kept.plain
    if taken.parameters_only or not tells_code(rule):
        return None
    if plain.param_groups is None:
        raise StateError(
            "the checkpoint names code of the training script, and holds no groups of its "
            "optimizer: --run-code runs that code, for a checkpoint of your own"
        )
    numbers = kept.numbers
    return Given(
        step=taken.step,
        digest=taken.digest,
        rule=rule,
        model=dict(taken.parameters),
        optimizer={"state": kept.numbered_states, "param_groups": plain.param_groups},
        order=tuple(numbers.get(name, -1) for name in taken.parameters),
        among=kept.among,
        scheduler=plain.scheduler,
        scaler=plain.scaler,
        masters=taken.more.masters,
        averages=taken.more.averages,
        averaged=taken.more.averaged,
        taken=taken.step - taken.more.skipped,
        older=taken.older,
        beside=taken.beside,
        assumed=assumed,
    )
