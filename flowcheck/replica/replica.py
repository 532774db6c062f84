"""A model on the CPU that takes every step the trainer takes, bit for bit, and survives kill -9."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.elements import Flat, elements_of
from flowcheck.replica.held import Held
from flowcheck.replica.kept.digest import DIGEST_BYTES, Table, state_digest, tensor_digests
from flowcheck.replica.kept.header import COPIES_MAX, Commit, Description
from flowcheck.replica.kept.sections import describe, named_tensors
from flowcheck.replica.kept.state import StateFile, place_sections
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.beginning import begun
from flowcheck.replica.rules.gradients import taken
from flowcheck.replica.rules.hidden import check_hidden
from flowcheck.replica.rules.masters import stepped_layout
from flowcheck.replica.started import Started
from flowcheck.replica.taking import Making, Taker
from flowcheck.replica.warm import load_torch
from flowcheck.replica.workers import Workers
from flowcheck.step_numbers import Step


class Replica(Held):
    """Parameters and optimizer state at one committed step.

    `apply` builds the next step in the copy that is not committed, so that the only good copy is
    never touched; a reader sees the step before or the step after.
    """

    def __init__(
        self, state: StateFile, optimizer: OptimizerConfig, workers: Workers | None = None
    ) -> None:
        """Use `create` or `open`."""
        super().__init__(state)
        self.optimizer = optimizer
        self.interrupted_step = state.in_step if state.in_step > state.commit.step else 0
        """The step a killed process was in the middle of when this one took over; 0 for none."""
        self._taker = Taker(state, optimizer, workers)
        self.tensor_digests: list[bytes] = []
        """Of the newest step, in the order of kept/sections.py, named_tensors; [] where they were
        not summed: before the first step, behind going back, opened without a look at all bytes."""
        self._started: Started | None = None
        self._table: Table | None = None
        state.in_step = Step(0)

    @classmethod
    def create(
        cls,
        path: Path,
        layout: Layout,
        optimizer: OptimizerConfig,
        weights: Flat,
        *,
        keep_bytes: int = 0,
        leaves_out: bool = False,
        workers: Workers | None = None,
    ) -> Replica:
        """A replica at step 0 with these weights and no optimizer state yet, in a new file.

        keep_bytes: for steps kept beside the newest and the one being made; leaves_out: steps may
        leave out parameters that have no gradient.
        weights: [layout.elements], registration order, memory order (`Layout.memory_order` turns
        what DDP broadcasts into it). Raises StateError where `path` exists or sizes differ.
        """
        sections = place_sections(describe(layout, optimizer, leaves_out))
        check_hidden(optimizer, stepped_layout(optimizer, layout))
        description = Description(layout, sections)
        first = begun(optimizer, description, elements_of(weights, layout, "weights"))
        named = named_tensors(description, first)
        digest = state_digest(named, tensor_digests(array for _, array in named))
        commit = Commit(1, Step(0), 0, False, digest, optimizers.fingerprint(optimizer))
        each = sum(s.size_bytes for s in sections)
        copies = min(COPIES_MAX, 2 + keep_bytes // max(each, 1))
        workers = workers or Workers()
        state = StateFile.create(path, description, first, commit, copies=copies, workers=workers)
        return cls(state, optimizer, workers)

    @classmethod
    def open(
        cls,
        path: Path,
        optimizer: OptimizerConfig,
        *,
        verify: bool = True,
        workers: Workers | None = None,
    ) -> Replica:
        """The replica at `path`, at its last committed step.

        verify: read the committed copy once and compare its digest. Raises RingError where the
        file is missing or not ours, StateError for another optimizer or a digest that differs.
        """
        state = StateFile.open(path)
        try:
            expected = optimizers.fingerprint(optimizer)
            leaves_out = any(s.name == optimizers.STEPPED for s in state.description.sections)
            layout = state.description.layout
            alike = state.commit.fingerprint == expected
            if not alike or state.description.sections != place_sections(
                describe(layout, optimizer, leaves_out)
            ):
                raise StateError(
                    f"{path}: this replica was made with other optimizer settings than {optimizer}"
                )
            replica = cls(state, optimizer, workers)
            if verify:
                replica._verify()
        except BaseException:
            state.close()
            raise
        return replica

    def _verify(self) -> None:
        commit = self.commit
        digests = self._taker.digests(commit.copy)
        if self._whole(commit.copy, digests) != commit.digest:
            raise StateError(
                f"{self.path}: the bytes of step {commit.step} do not have their digest; "
                "the file was changed or the memory is faulty"
            )
        self.tensor_digests = digests

    @property
    def rests_on(self) -> tuple[str, ...]:
        """What its arithmetic rests on that nothing seen could contradict, in sentences."""
        return self._taker.rests_on

    def prepare(self) -> None:
        """Loads what the first step needs of torch: seconds that need not be that step's."""
        load_torch(steps=self._taker.unfit is not None)

    @property
    def takes_parts(self) -> bool:
        """Whether parameters may be stepped before the gradients of the others are there."""
        return self._taker.takes_parts

    def spares(self, steps: int) -> bool:
        """Whether a step may be begun without taking a copy that is read, and leaving at least so
        many earlier steps whole."""
        return self._open.spares(steps)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """{parameter name: {"value": tensor, state name: tensor ...}} of the committed copy, in
        place with the trainer's strides. Not to be written."""
        parameters = self._taker.parameters(self._open.commit.copy)
        return {
            p.name: {"value": value} | {name: own.tensor for name, own in states.items()}
            for p, value, states in zip(
                self.layout.parameters, parameters, self.states(), strict=True
            )
        }

    def apply(self, step: Step, gradient: Flat, used: optimizers.Used = None) -> None:
        """Goes from `step - 1` to `step`. gradient: [layout.gradient_bytes] in registration order,
        the mean as it was reduced, never written; used: [parameters] bool, those that have one.

        Raises StateError for any other step (a step that a restarted caller brings again is told
        by `self.step`) and for a gradient of another size; nothing has changed then.
        """
        self.begin(step, gradient, used).commit()

    def begin(self, step: Step, gradient: Flat, used: optimizers.Used = None) -> Started:
        """The step after this one, to be made part by part as `apply` makes it whole; another that
        was begun is given up. Where `takes_parts`, `gradient` is read as parameters are taken."""
        state = self._open
        if step != state.commit.step + 1:
            raise StateError(f"the replica is at step {state.commit.step}, got gradients of {step}")
        values = taken(gradient, self.layout, self._taker.inner)
        self._give_up()
        had, good, others = state.commit.has_optimizer_state, state.commit.copy, []

        def making() -> Making:
            others.append(state.begin())
            state.in_step = step
            return self._taker.begin(step, good, others[0], values, had, used)

        def publish(digests: list[bytes]) -> None:
            state.publish(step, others[0], self._whole(others[0], digests))
            self.tensor_digests, state.in_step = digests, Step(0)

        self._started = Started(making, publish)
        return self._started

    def _give_up(self) -> None:
        if self._started is not None:
            self._started.abandon()
            self._started = None
            self._open.in_step = Step(0)

    def rebase(self, step: Step, sections: Mapping[str, np.ndarray]) -> None:
        """The state of another past: it is the only step from now on.

        sections: every flat array of a copy by name, as `sections` gives them. Raises StateError
        where they are not this replica's; nothing has changed then.
        """
        state = self._open
        own = {name: (array.dtype, array.size) for name, array in self.sections().items()}
        found = {name: (array.dtype, array.size) for name, array in sections.items()}
        if found != own:
            raise StateError(f"a base with {sorted(found)} is none for this replica")
        self._give_up()
        copy = state.begin()
        for name, array in state.sections(copy).items():
            np.copyto(array, sections[name].reshape(-1))
        digests = self._taker.digests(copy)
        whole = self._whole(copy, digests)
        state.publish_alone(step, copy, whole, has_optimizer_state=step > 0)
        self.tensor_digests = digests

    def go_back(self, step: Step) -> None:
        """Returns to an older whole step; later ones are gone. Raises StateError without it."""
        found = [commit for commit in self._open.versions if commit.step == step]
        if not found:
            raise StateError(f"step {step} is not kept (steps kept: {list(self.versions)})")
        self._give_up()
        if step != self.step:
            self._open.go_back(found[-1])
            self.tensor_digests = []

    def close(self) -> None:
        """Lets go of the file; views handed out stay readable until they are dropped."""
        if self._state is not None:
            self._taker.close()
            self._state.close()
            self._state = None

    def _whole(self, copy: int, digests: list[bytes]) -> bytes:
        """Of a copy, by its tensors' digests in the order of kept/sections.py, named_tensors."""
        if self._table is None:
            named = named_tensors(self.description, self._open.sections(copy))
            self._table = Table(named)
        return self._table.digest(digests)


assert DIGEST_BYTES == 16  # the commit slot holds 16
