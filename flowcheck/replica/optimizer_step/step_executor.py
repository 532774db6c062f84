"""Executes a step from the committed copy of the state into another copy: in one pass of the C
kernel if the optimizer allows it, else with torch on a copy of the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic
from flowcheck.replica.flat_tensors import Tensors, parameter_views
from flowcheck.replica.optimizer.cuda_gradient_norm import HALVES_SINCE, CudaGradientNorm
from flowcheck.replica.optimizer.gradient_clipping import clip_factor, factor_of_norm
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.replica.optimizer.state_section_names import (
    SCALER,
    SCALER_NUMBERS,
    STEP_COUNT,
    STEPPED,
    GradientMask,
)
from flowcheck.replica.optimizer.state_sections import has_state_mask, named_tensors
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.optimizer_step.c_kernel_pass import KernelPass, KernelPlan, StepArguments
from flowcheck.replica.optimizer_step.cuda_kernel_choice import (
    arithmetic_of,
    at_least_torch,
    cuda_assumptions,
    norm_assumptions,
)
from flowcheck.replica.optimizer_step.weights_only_step import WeightsOnlyStepper, stepper_for_copy
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.replica.state_file.file_header import EntryPer
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.replica.torch_vector_math import settle_vector_math
from flowcheck.replica.worker_threads import WorkerThreads
from flowcheck.step_numbers import Step


class StepInProgress(Protocol):
    """A step that is written to a copy which is not visible to readers yet."""

    @property
    def arguments(self) -> StepArguments | None:
        """What the C kernel makes it with; None: torch makes it."""

    def apply(self, parameters: Sequence[int]) -> None:
        """Steps these parameters, whose gradients are complete, if they can be stepped before the
        others."""

    def finish(self) -> list[bytes]:
        """Steps all remaining parameters. Returns the digest of every tensor, in the order of
        `named_tensors`."""


@dataclass(frozen=True, slots=True)
class _CKernelStep:
    arguments: StepArguments
    passing: KernelPass
    flat: KernelPlan
    counts: list[np.ndarray]
    pool: ThreadPoolExecutor
    threads: int
    joins: bool

    def apply(self, parameters: Sequence[int]) -> None:
        self._pass(self.flat.of(parameters))

    def finish(self) -> list[bytes]:
        self._pass(None)
        return self.passing.digests() + tensor_digests(self.counts)

    def _pass(self, items: np.ndarray | None) -> None:
        self.passing.run(items, self.pool, self.threads, joins=self.joins)


@dataclass(frozen=True, slots=True)
class _TorchStep:
    finish: Callable[[], list[bytes]]
    arguments: None = None

    def apply(self, parameters: Sequence[int]) -> None:
        """All at the end."""


class StepExecutor:
    """Executes the steps of one state file."""

    def __init__(
        self, state: StateFile, optimizer: OptimizerConfig, workers: WorkerThreads | None = None
    ) -> None:
        self._optimizer, self._description = optimizer, state.description
        self._layout = state.description.layout
        self.inner = stepped_layout(optimizer, self._layout)
        """Layout of the tensors that the optimizer steps, in whose dtype it reads gradients."""
        self._sections = [state.sections(copy) for copy in range(state.copies)]
        self._whole = [state.bytes_of_copy(copy) for copy in range(state.copies)]
        self._steppers = [
            stepper_for_copy(optimizer, state.description, each) for each in self._sections
        ]
        workers = workers or WorkerThreads()
        self._threads, self._pool = workers.pool()
        self._joins = workers.caller_steps
        self.arithmetic = self._arithmetic()
        """Rounding of the trainer's kernels."""
        settle_vector_math()
        self.why_torch_steps = self._why_not_one_pass()
        """Why torch applies the steps; None where C does."""

    def _arithmetic(self) -> Arithmetic:
        first, config = self._steppers[0], self._optimizer
        if isinstance(first, WeightsOnlyStepper):
            return Arithmetic.CPU
        return arithmetic_of(config.device, first.optimizer, config.torch)

    def _why_not_one_pass(self) -> Finding | None:
        first = self._steppers[0]
        if isinstance(first, WeightsOnlyStepper):
            return findings.NO_OPTIMIZER()
        config, sections = self._optimizer, self._description.sections
        if len(first.optimizers) > 1:
            return findings.SEVERAL_OPTIMIZERS()
        other = config.clip_value is not None or bool(config.sharded_groups)
        if other or config.clip_norm_type != 2.0 or config.scaler:
            return findings.OTHER_CLIPPING()
        masters = config.master_dtype not in (None, self._layout.dtype)
        if config.clip_error_if_nonfinite or masters or config.average:
            return findings.MORE_THAN_THE_RULE()
        if any(s.per is EntryPer.PLACE for s in sections) or not first.steps_all:
            return findings.DIFFERENT_STATES()
        return c_kernel_args.why_no_c_kernel(first.optimizer, self._layout, self.arithmetic)

    @property
    def assumptions(self) -> tuple[Finding, ...]:
        """Assumptions about the trainer's arithmetic that no packet can confirm."""
        first, unfit = self._steppers[0], self.why_torch_steps
        if isinstance(first, WeightsOnlyStepper):
            return ()
        if self.arithmetic.cuda:
            own = cuda_assumptions(self.arithmetic, first.optimizer, unfit)
            own += norm_assumptions(self._optimizer) if unfit is None else ()
        else:
            rests_on = (
                one for each in first.optimizers for one in c_kernel_args.cpu_assumptions(each)
            )
            own = tuple(dict.fromkeys(rests_on))
        return own if self._optimizer.scaler is None else (*own, findings.LOSS_SCALE())

    @property
    def kernel_sections(self) -> tuple[str, ...]:
        """Sections that the C kernel steps, parameters first; () where torch makes the steps."""
        return () if self.why_torch_steps is not None else self._flat.sections

    @cached_property
    def _flat(self) -> KernelPlan:
        return KernelPlan(self._layout, [s for s in self._sections[0] if s not in _COUNTS])

    @cached_property
    def _cuda_norm(self) -> CudaGradientNorm:
        config = self._optimizer
        halves = at_least_torch(HALVES_SINCE, config.torch)
        return CudaGradientNorm(self._layout, foreach=config.clip_foreach, halves=halves)

    @cached_property
    def _settings(self) -> ParamGroupSettings:
        """Only steps ask for it: a replica is kept also where its schedule cannot be had."""
        return ParamGroupSettings(self._optimizer, self.inner)

    def parameters(self, copy: int) -> Tensors:
        """[parameter] tensors of a copy, in place. copy: its number in the state file."""
        return self._steppers[copy].parameters

    @property
    def applies_early(self) -> bool:
        """Whether a parameter can be stepped before the gradients of all others are complete."""
        config = self._optimizer
        alone = config.clip_norm is None and config.gradient_divisor == 1.0
        return self.why_torch_steps is None and alone and self._layout.gradient_dtype is None

    def begin(
        self,
        step: Step,
        good: int,
        other: int,
        gradient: torch.Tensor,
        has_state: bool,
        used: GradientMask,
    ) -> StepInProgress:
        """Prepares `step`; its result is written when the returned object's apply() and finish()
        are called.

        good: number of the copy with the state before the step.
        other: number of the copy to write.
        gradient: flat [inner.elements], as it was reduced.
        has_state: at least one step was applied before.
        used: [parameters] bool, those that have a gradient; None: all.

        Raises ConfigError where the schedule fails.
        """
        stepper = self._steppers[other]
        if self.why_torch_steps is not None or isinstance(stepper, WeightsOnlyStepper):
            return _TorchStep(lambda: self._by_torch(step, good, other, gradient, has_state, used))
        stepper.set_groups(self._settings.settings_at(step - 1))
        source, target = self._sections[good], self._sections[other]
        held = has_state_mask(self._description, source, stepped=has_state)
        taken = np.ones(len(held), np.bool_) if used is None else np.asarray(used, np.bool_)
        gradient, divisor, scale = self._reduced(gradient, taken)
        table = c_kernel_args.kernel_args(
            stepper.optimizer,
            stepper.groups,
            source.get(STEP_COUNT),
            held,
            taken,
            divisor=divisor,
            scale=scale,
            arithmetic=self.arithmetic,
        )
        wide = c_kernel_args.double_kernel_args(
            stepper.optimizer, stepper.groups, len(taken), self.arithmetic
        )
        for name in _COUNTS & source.keys():
            np.copyto(target[name], source[name])
            target[name][taken] = target[name][taken] + 1 if name == STEP_COUNT else 1
        counts = [target[name] for name in source if name in _COUNTS]
        root = c_kernel_args.square_root_kind() or 0
        arguments = StepArguments(table, root, gradient.numpy(), wide)
        passing = self._flat.begin(arguments, source, target)
        threads, joins = self._threads, self._joins
        return _CKernelStep(arguments, passing, self._flat, counts, self._pool, threads, joins)

    def _by_torch(
        self,
        step: Step,
        good: int,
        other: int,
        gradient: torch.Tensor,
        has_state: bool,
        used: GradientMask,
    ) -> list[bytes]:
        stepper = self._steppers[other]
        torch.from_numpy(self._whole[other]).copy_(torch.from_numpy(self._whole[good]))
        if isinstance(stepper, WeightsOnlyStepper):
            stepper.replace_weights(step, gradient, used)
        else:
            groups = self._settings.settings_at(self._events(step, good))
            stepper.step(step, gradient, groups, has_state=has_state, used=used)
        return self.digests(other)

    def _events(self, step: Step, good: int) -> int:
        """How often the script came past its scheduler before this step."""
        numbers = self._sections[good].get(SCALER)
        skipped = 0 if numbers is None else int(numbers[SCALER_NUMBERS.index("skipped")])
        return scheduler_events(self._optimizer, Step(step - 1), skipped)

    def _reduced(
        self, gradient: torch.Tensor, taken: np.ndarray
    ) -> tuple[torch.Tensor, float, float | None]:
        """(gradient, what is still to divide it by, what then to multiply it by): a norm is of the
        quotients, so that they are made first where there is one."""
        config = self._optimizer
        if config.clip_norm is None or config.clip_together:
            return gradient, config.gradient_divisor, None
        if config.gradient_divisor != 1.0:
            gradient = gradient / config.gradient_divisor
        if self.arithmetic.cuda and taken.any():
            pool = self._pool, self._threads
            norm = self._cuda_norm.of(gradient.numpy(), taken, *pool, joins=self._joins)
            return gradient, 1.0, factor_of_norm(torch.tensor(norm), config.clip_norm)
        own = [
            g for g, has in zip(parameter_views(gradient, self._layout), taken, strict=True) if has
        ]
        return gradient, 1.0, clip_factor(own, config.clip_norm, threads=config.torch_threads)

    def digests(self, copy: int) -> list[bytes]:
        """Digests of all tensors of a copy, in the order of `named_tensors`."""
        named = named_tensors(self._description, self._sections[copy])
        return tensor_digests((array for _, array in named), self._pool)

    def close(self) -> None:
        """Stops the threads and releases the state file's memory."""
        self._pool.shutdown()
        self._steppers, self._sections, self._whole = [], [], []


_COUNTS = frozenset((STEP_COUNT, STEPPED))
"""Sections of one number a parameter."""
