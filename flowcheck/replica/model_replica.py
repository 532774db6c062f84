"""The CPU replica of the model: reads its committed step in place, applies each training step
bit for bit, survives kill -9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import (
    BYTES_CHANGED,
    NO_STEPS,
    NOT_KEPT,
    OTHER_OPTIMIZER_THAN,
    OTHER_SECTIONS,
    OUT_OF_ORDER,
    PATCH_HEALS_NOTHING,
    PATCH_MISFIT,
    PATCH_NOT_FINITE,
    PATCH_REFUTED,
    PATCH_STEP_GONE,
    PATCH_STEPS_GONE,
    STEP_DIFFERS,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.change_observer import ChangeObserver
from flowcheck.replica.committed_replica import CommittedReplica
from flowcheck.replica.element_patch import (
    ElementPatch,
    not_finite,
    patch_fits,
    patch_of_sections,
    patch_sections,
)
from flowcheck.replica.element_ranges import Ranges, difference, intersection, no_ranges, union
from flowcheck.replica.flat_tensors import FlatValues, elements_of
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.gradient_clipping import gradient_as_stepped
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.state_sections import (
    describe_sections,
    named_tensors,
)
from flowcheck.replica.optimizer_step.c_kernel_pass import StepArguments
from flowcheck.replica.optimizer_step.initial_state import initial_arrays
from flowcheck.replica.optimizer_step.step_executor import StepExecutor, StepInProgress
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.pending_step import PendingStep
from flowcheck.replica.preflight.custom_optimizer_trial import check_determinism
from flowcheck.replica.state_digest import (
    DIGEST_BYTES,
    DigestTable,
    StateId,
    state_digest,
    tensor_digests,
)
from flowcheck.replica.state_file.file_header import COPIES_MAX, Commit, Description
from flowcheck.replica.state_file.state_file import StateFile, place_sections
from flowcheck.replica.taint import (
    ByteRange,
    TaintedRanges,
    TaintLog,
    forget_taint,
    missing_elements,
    record_start,
)
from flowcheck.replica.tainted_steps import TaintedSteps, forget_tainted_steps
from flowcheck.replica.torch_without_compiler import load_torch
from flowcheck.replica.weights_match import equal_outside, states_equal_outside
from flowcheck.replica.worker_threads import WorkerThreads
from flowcheck.step_numbers import Step


class Replica(CommittedReplica):
    """Parameters and optimizer state at one committed step.

    `apply` builds the next step in the copy that is not committed, so that the only good copy is
    never touched; a reader sees the step before or the step after.
    """

    def __init__(
        self, state: StateFile, optimizer: OptimizerConfig, workers: WorkerThreads | None = None
    ) -> None:
        """Use `create` or `open`."""
        super().__init__(state)
        self.optimizer = optimizer
        self.observer: ChangeObserver | None = None
        self.interrupted_step = (
            state.step_in_progress if state.step_in_progress > state.commit.step else 0
        )
        """The step a killed process was in the middle of when this one took over; 0 for none."""
        self._executor = StepExecutor(state, optimizer, workers)
        self.tensor_digests: list[bytes] = []
        """Of the newest step, in the order of `named_tensors`; [] where they were
        not summed: before the first step, behind going back, opened without a look at all bytes."""
        self._started: PendingStep | None = None
        self._table: DigestTable | None = None
        self._taint = TaintLog(state.path)
        self._tainted_steps = TaintedSteps(state.path, self.layout)
        state.step_in_progress = Step(0)

    @classmethod
    def create(
        cls,
        path: Path,
        layout: Layout,
        optimizer: OptimizerConfig,
        weights: FlatValues,
        *,
        keep_bytes: int = 0,
        may_skip_parameters: bool = False,
        workers: WorkerThreads | None = None,
        missing: Ranges | None = None,
    ) -> Replica:
        """A replica at step 0 with these weights and no optimizer state yet, in a new file.

        keep_bytes: for steps kept beside the newest and the one being made; may_skip_parameters:
        steps may leave out parameters that have no gradient; missing: elements of the weights that
        never came, which are tainted from the start.
        weights: [layout.elements], registration order, memory order (`Layout.memory_order` turns
        what DDP broadcasts into it). Raises StateError where `path` exists or sizes differ.
        """
        sections = place_sections(describe_sections(layout, optimizer, may_skip_parameters))
        check_determinism(optimizer, stepped_layout(optimizer, layout))
        description = Description(layout, sections)
        first = initial_arrays(optimizer, description, elements_of(weights, layout, "weights"))
        named = named_tensors(description, first)
        digest = state_digest(named, tensor_digests(array for _, array in named))
        lacks = no_ranges() if missing is None else missing
        fingerprint = state_section_names.fingerprint(optimizer)
        tainted = bool(len(lacks))
        commit = Commit(1, Step(0), 0, False, digest, fingerprint, tainted=tainted)
        each = sum(s.size_bytes for s in sections)
        copies = min(COPIES_MAX, 2 + keep_bytes // max(each, 1))
        workers = workers or WorkerThreads()
        forget_taint(path)
        forget_tainted_steps(path)
        record_start(path, lacks)  # before anybody can read the step
        state = StateFile.create(path, description, first, commit, copies=copies, workers=workers)
        return cls(state, optimizer, workers)

    @classmethod
    def open(
        cls,
        path: Path,
        optimizer: OptimizerConfig,
        *,
        verify: bool = True,
        workers: WorkerThreads | None = None,
    ) -> Replica:
        """The replica at `path`, at its last committed step.

        verify: read the committed copy once and compare its digest. Raises RingError where the
        file is missing or not ours, StateError for another optimizer or a digest that differs.
        """
        state = StateFile.open(path)
        try:
            expected = state_section_names.fingerprint(optimizer)
            leaves_out = any(
                s.name == state_section_names.STEPPED for s in state.description.sections
            )
            layout = state.description.layout
            alike = state.commit.fingerprint == expected
            if not alike or state.description.sections != place_sections(
                describe_sections(layout, optimizer, leaves_out)
            ):
                raise StateError(OTHER_OPTIMIZER_THAN(path=path, optimizer=repr(optimizer)))
            replica = cls(state, optimizer, workers)
            if verify:
                replica._verify()
        except BaseException:
            state.close()
            raise
        return replica

    def _verify(self) -> None:
        if not self.has_its_digest():
            raise StateError(BYTES_CHANGED(path=self.path, step=self.step))

    def has_its_digest(self) -> bool:
        """Whether the bytes of the newest step are those that were committed; reads them once."""
        commit = self.commit
        digests = self._executor.digests(commit.copy)
        if self._whole(commit.copy, digests) != commit.digest:
            return False
        self.tensor_digests = digests
        return True

    @property
    def assumptions(self) -> tuple[Finding, ...]:
        """What its arithmetic rests on that nothing seen could contradict."""
        return self._executor.assumptions

    def prepare(self) -> None:
        """Loads what the first step needs of torch: seconds that need not be that step's."""
        load_torch(steps=self._executor.why_torch_steps is not None)

    @property
    def applies_early(self) -> bool:
        """Whether parameters may be stepped before the gradients of the others are there."""
        return self._executor.applies_early

    def has_spare_copy(self, steps: int) -> bool:
        """Whether a step may be begun without taking a copy that is read, and leaving at least so
        many earlier steps whole."""
        return self._open.has_spare_copy(steps)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """{parameter name: {"value": tensor, state name: tensor ...}} of the committed copy, in
        place with the trainer's strides. Not to be written."""
        parameters = self._executor.parameters(self._open.commit.copy)
        return {
            p.name: {"value": value} | {name: own.tensor for name, own in states.items()}
            for p, value, states in zip(
                self.layout.parameters, parameters, self.states(), strict=True
            )
        }

    def apply(
        self,
        step: Step,
        gradient: FlatValues,
        used: state_section_names.GradientMask = None,
        missing: Sequence[ByteRange] = (),
    ) -> None:
        """Goes from `step - 1` to `step`. gradient: [layout.gradient_bytes] in registration order,
        the mean as it was reduced, never written; used: [parameters] bool, those that have one;
        missing: byte ranges of it that never came and are zero, whose elements are tainted from
        this step on. Only for a rule that steps each element by itself.

        Raises StateError for any other step (a step that a restarted caller brings again is told
        by `self.step`) and for a gradient of another size; nothing has changed then.
        """
        self.begin(step, gradient, used, missing).commit()

    def begin(
        self,
        step: Step,
        gradient: FlatValues,
        used: state_section_names.GradientMask = None,
        missing: Sequence[ByteRange] | Ranges = (),
        *,
        digest: str | None = None,
    ) -> PendingStep:
        """The step after this one, to be made part by part as `apply` makes it whole; another that
        was begun is given up. Where `applies_early`, `gradient` is read as its parameters are.
        missing: as of `apply`, or the elements themselves; digest: of the state that it must lead
        to, else its commit raises StateError and nobody sees anything of it."""
        state = self._open
        if step != state.commit.step + 1:
            raise StateError(OUT_OF_ORDER(step=state.commit.step, given=step))
        values = gradient_as_stepped(gradient, self.layout, self._executor.inner)
        self._give_up()
        had, good, others = state.commit.has_optimizer_state, state.commit.copy, []
        arguments: list[StepArguments | None] = []
        lacks = (
            missing if isinstance(missing, np.ndarray) else missing_elements(self.layout, missing)
        )
        assert self.optimizer.per_element or not len(lacks), "the caller asks first"

        def begin_in_copy() -> StepInProgress:
            others.append(state.begin())
            state.step_in_progress = step
            begun = self._executor.begin(step, good, others[0], values, had, used)
            arguments.append(begun.arguments)
            return begun

        def publish(digests: list[bytes]) -> None:
            whole = self._whole(others[0], digests)
            if digest not in (None, whole.hex()):
                state.step_in_progress = Step(0)
                raise StateError(STEP_DIFFERS(step=step, own=whole.hex(), other=str(digest)))
            self._taint.record(step, lacks)  # before anybody can read the step
            tainted = self._taint.elements_at(step)
            self._tainted_steps.record(step, tainted, arguments[0])
            if self.observer is not None:
                self.observer.step_made(self._newest, (step, whole.hex()), lacks)
            state.publish(step, others[0], whole, tainted=bool(len(tainted)))
            self._tell_committed()
            self.tensor_digests, state.step_in_progress = digests, Step(0)

        self._started = PendingStep(begin_in_copy, publish)
        return self._started

    def _tell_committed(self) -> None:
        if self.observer is not None:
            self.observer.change_committed()

    @property
    def _newest(self) -> StateId:
        return self.step, self.digest

    def _give_up(self) -> None:
        if self._started is not None:
            self._started.abandon()
            self._started = None
            self._open.step_in_progress = Step(0)

    @property
    def tainted(self) -> TaintedRanges:
        """Elements of `step` that rest on bytes which never came."""
        return self._taint.at(self.step, self.layout)

    @property
    def tainted_ranges(self) -> Ranges:
        """The same elements, counted over all parameters."""
        return self._taint.elements_at(self.step)

    def tainted_at(self, step: Step) -> Ranges:
        """Those of a step that it made, as far as they are known by now."""
        return self._taint.elements_at(step)

    def lacked(self, step: Step) -> Ranges:
        """Elements that were missing of a step which is made again, or later."""
        return self._taint.missing_of(step)

    def note_missing(self, step: Step, missing: Sequence[ByteRange]) -> None:
        """What a step will lack whose gradient is put away until its turn."""
        self._taint.record(step, missing_elements(self.layout, missing))

    def taint_since(self, step: Step, elements: Ranges) -> None:
        """Elements turned out to rest, since a step that may be made already, on bytes that are not
        known. Only for a rule that steps each element by itself. Runs again after a kill."""
        assert self.optimizer.per_element or not len(elements), "the caller asks first"
        state = self._open
        self._taint.add(step, elements)  # first: a kill leaves more taint, never less
        if step > self.step or not len(elements):
            return
        self._give_up()
        state.mark_tainted(step)
        if self.observer is not None:
            self.observer.tainted_late(self._newest, step, elements)
        if not self.commit.tainted:
            copy = state.begin()
            state.bytes_of_copy(copy)[:] = state.bytes_of_copy(self.commit.copy)
            state.publish_again(copy, self.commit.digest, tainted=True)
        self._tell_committed()

    def rebase(self, step: Step, sections: Mapping[str, np.ndarray], *, replays: bool) -> None:
        """The state of another past: it is the only step from now on, and nothing of it is
        tainted. replays: the steps behind it are made again, with what they had.

        sections: every flat array of a copy by name, as `sections` gives them. Raises StateError
        where they are not this replica's; nothing has changed then.
        """
        state = self._open
        own = {name: (array.dtype, array.size) for name, array in self.sections().items()}
        found = {name: (array.dtype, array.size) for name, array in sections.items()}
        if found != own:
            raise StateError(OTHER_SECTIONS(sorted(found)))
        self._give_up()
        wrong = self.observer is not None and not self._is_as_held(step, sections)
        copy = state.begin()
        for name, array in state.sections(copy).items():
            np.copyto(array, sections[name].reshape(-1))
        digests = self._executor.digests(copy)
        whole = self._whole(copy, digests)
        if self.observer is not None:
            behind = step, whole.hex()
            self.observer.state_replaced(self._newest, behind, gives_up=wrong)
        state.publish_new_lineage(step, copy, whole, has_optimizer_state=step > 0)
        self._tell_committed()
        self._taint.heal(step)  # behind it: a kill between leaves what is tainted no more
        self._tainted_steps.forget_after(step)
        if not replays:
            self._taint.forget_after(step)
        self.tensor_digests = digests

    def _is_as_held(self, step: Step, sections: Mapping[str, np.ndarray]) -> bool:
        """Whether the state of a step is what the replica had of it, as far as that was not
        tainted, or the replica was not that far. One that it holds no more may not be."""
        if step > self.step:
            return True
        held, tainted = self._held(step), self._taint.elements_at(step)
        return held is not None and states_equal_outside(
            self.description, sections, self.sections_of(held), tainted
        )

    def heal(self, step: Step, patch: ElementPatch) -> Ranges:
        """Replaces tainted elements of the newest step by what the trainer's values of this or an
        earlier step lead to. Returns the elements that are exact since.

        Elements that lacked a byte again since stay as they are. Elements of the patch that were
        not tainted at `step` are evidence: they must be equal to the replica's. Raises StateError
        where the patch is none of this replica's, is refuted, heals nothing, or the steps since
        cannot be made again; nothing has changed then.
        """
        description = self.description
        if step > self.step or not patch_fits(description, patch):
            raise StateError(PATCH_MISFIT(step=step, at=self.step))
        self._check_evidence(step, patch)
        elements = intersection(patch.elements, self._taint.healable(step, self.step))
        if not len(elements):
            raise StateError(PATCH_HEALS_NOTHING(step=step, at=self.step))
        own = patch.of(description, elements)
        if (section := not_finite(description, own)) is not None:
            raise StateError(PATCH_NOT_FINITE(step=step, section=section))
        if step < self.step:
            since, names = range(step + 1, self.step + 1), self._executor.kernel_sections
            behind = self._tainted_steps.replayed(own, since, names)
            if behind is None:
                raise StateError(PATCH_STEPS_GONE(step=step, at=self.step))
            own = behind
        self.replace_values(own, exact=True, of=step)
        return elements

    def replace_values(
        self,
        patch: ElementPatch,
        *,
        exact: bool,
        of: Step | None = None,
        digest: str | None = None,
    ) -> None:
        """Makes the newest step anew with these values in tainted elements. exact: the elements are
        tainted no more; of: step of the trainer's values that these rest on; None: the newest;
        digest: of the state that it must lead to, else StateError is raised and nothing changed."""
        state, tainted = self._open, self._taint.elements_at(self.step)
        left = difference(tainted, patch.elements) if exact else tainted
        self._give_up()
        copy = state.begin()
        state.bytes_of_copy(copy)[:] = state.bytes_of_copy(self.commit.copy)
        patch_sections(self.description, state.sections(copy), patch)
        digests = self._executor.digests(copy)
        whole = self._whole(copy, digests)
        if digest not in (None, whole.hex()):
            raise StateError(STEP_DIFFERS(step=self.step, own=whole.hex(), other=str(digest)))
        if self.observer is not None:
            behind = self.step, whole.hex()
            self.observer.values_replaced(self._newest, behind, patch, exact=exact)
        state.publish_again(copy, whole, tainted=bool(len(left)))
        self._tell_committed()
        self.tensor_digests = digests
        if exact:  # behind the commit
            of = self.step if of is None else of
            self._taint.heal_elements(patch.elements, of, self.step)
            if not len(self._taint.elements_at(self.step)):
                self._tainted_steps.clear()

    def step_of_weights(self, weights: FlatValues, missing: Ranges | None = None) -> Step | None:
        """The newest whole step without tainted elements whose parameters have these bytes; else
        the newest one whose untainted elements have them, where those are most; None if there is
        none.

        weights: [layout.elements], registration order, memory order; missing: elements of them that
        never came.
        """
        lacks = no_ranges() if missing is None else missing
        values = elements_of(weights, self.layout, "weights")
        matching: list[tuple[bool, Step]] = []
        for commit in self._open.versions:
            held = self._open.sections(commit.copy)[state_section_names.PARAMETERS]
            tainted = self._taint.elements_at(commit.step)
            if equal_outside(self.description, values, held, union([tainted, lacks])):
                matching.append((not len(tainted), commit.step))
        return max(matching)[1] if matching else None

    def take_weights(self, weights: FlatValues, missing: Ranges | None = None) -> Ranges:
        """Replaces the parameters of the newest step's tainted elements by the trainer's of this
        step. Returns the elements that are exact since: all of them where the replica keeps nothing
        but the parameter of an element, else none, as their optimizer state is still not known.

        weights, missing: as of `step_of_weights`.
        """
        elements = self._taint.elements_at(self.step)
        if missing is not None:
            elements = difference(elements, missing)
        if not len(elements):
            return elements
        sections = dict(self.sections())
        sections[state_section_names.PARAMETERS] = elements_of(weights, self.layout, "weights")
        patch = patch_of_sections(self.description, sections, elements)
        alone = patch.parts.keys() == {state_section_names.PARAMETERS}
        self.replace_values(patch, exact=alone)
        return elements if alone else no_ranges()

    def _check_evidence(self, step: Step, patch: ElementPatch) -> None:
        evidence = difference(patch.elements, self._taint.elements_at(step))
        if not len(evidence):
            return
        held = self._held(step)
        if held is None:
            raise StateError(PATCH_STEP_GONE(step=step, kept=self.versions))
        mine = patch_of_sections(self.description, self.sections_of(held), evidence)
        theirs = patch.of(self.description, evidence)
        for name, part in mine.parts.items():
            if not np.array_equal(part, theirs.parts[name]):
                raise StateError(PATCH_REFUTED(step=step, section=name))

    def go_back(self, step: Step) -> None:
        """Returns to an older whole step; later ones are gone. Raises StateError without it."""
        found = self._held(step)
        if found is None:
            raise StateError(NOT_KEPT(step=step, kept=tuple(self.versions) or NO_STEPS()))
        self._give_up()
        if step != self.step:
            self._open.go_back(found)
            self.tensor_digests = []
        self._taint.forget_after(step)
        self._tainted_steps.forget_after(step)

    def close(self) -> None:
        """Lets go of the file; views handed out stay readable until they are dropped."""
        if self._state is not None:
            self._executor.close()
            self._state.close()
            self._state = None

    def _whole(self, copy: int, digests: list[bytes]) -> bytes:
        """Of a copy, by its tensors' digests in the order of `named_tensors`."""
        if self._table is None:
            named = named_tensors(self.description, self._open.sections(copy))
            self._table = DigestTable(named)
        return self._table.digest(digests)


assert DIGEST_BYTES == 16  # the commit slot holds 16
