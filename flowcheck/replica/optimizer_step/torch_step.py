"""Steps of the trainer's optimizers in torch, in place on the replica's memory. The implementation
(for-loop, foreach, fused) decides the last bits, so the job file states it. torch creates states
lazily and sometimes replaces a tensor instead of writing into it; after `step` all states are in
the replica's memory again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.flat_tensors import parameter_views
from flowcheck.replica.optimizer.grad_scaler import scaled_step
from flowcheck.replica.optimizer.gradient_clipping import clip_gradients, has_clipping
from flowcheck.replica.optimizer.master_weights import Rounding, stepped_layout
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.optimizer.state_section_names import (
    AVERAGE,
    AVERAGED,
    MASTER,
    PARAMETERS,
    SCALER,
    STEPPED,
    GradientMask,
    writes_gradient,
)
from flowcheck.replica.optimizer.state_sections import (
    StoredState,
    has_state_mask,
    stored_states,
    tensors_of_section,
)
from flowcheck.replica.optimizer_step.weight_averages import averages_due, update_averages
from flowcheck.replica.param_layout import SEVERAL_DTYPES, Layout
from flowcheck.replica.state_file.file_header import Description
from flowcheck.step_numbers import Step


class InPlaceTorchOptimizers:
    """torch's optimizers over the parameters and states of one copy of the replica."""

    def __init__(
        self,
        config: OptimizerConfig,
        description: Description,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """arrays: of the copy, by the names of the description's sections."""
        self._config, self._description, self._arrays = config, description, arrays
        layout = description.layout
        self._inner = stepped_layout(config, layout)
        own = tensors_of_section(description, arrays, PARAMETERS)
        assert own is not None
        self.parameters = own
        self._masters = tensors_of_section(description, arrays, MASTER)
        stepped = own if self._masters is None else self._masters
        self._leaves = [torch.nn.Parameter(tensor) for tensor in stepped]
        self.states = stored_states(description, arrays)
        built = build_optimizer(config, self._inner, self._leaves)
        self.optimizers, self._order = built.optimizers, built.order
        self._of = built.of_parameters
        for own_optimizer in self.optimizers:
            own_optimizer.state.clear()
        self._averages = tensors_of_section(description, arrays, AVERAGE)
        self._rounding = Rounding(config)

    @property
    def steps_all(self) -> bool:
        """Whether every parameter is in a param_group."""
        return all(number >= 0 for number in self._order)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """torch's first optimizer, with the group settings of the last `step` or `set_groups`."""
        return self.optimizers[0]

    @property
    def groups(self) -> list[tuple[dict[str, Any], np.ndarray]]:
        """(settings, indices of its parameters in registration order) of each param_group of all
        optimizers."""
        return list(zip(self._stated, self._members, strict=True))

    @property
    def _stated(self) -> list[dict[str, Any]]:
        return [group for own in self.optimizers for group in own.param_groups]

    @cached_property
    def _members(self) -> list[np.ndarray]:
        place = {id(leaf): index for index, leaf in enumerate(self._leaves)}
        return [np.array([place[id(p)] for p in g["params"]], np.intp) for g in self._stated]

    def set_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Sets the settings of all param_groups for the next step. groups: as
        `ParamGroupSettings.settings_at`."""
        for group, settings in zip(self._stated, groups, strict=True):
            group.update(settings)

    def step(
        self,
        step: Step,
        gradient: torch.Tensor,
        groups: Sequence[Mapping[str, Any]],
        *,
        has_state: bool,
        used: GradientMask = None,
    ) -> None:
        """One optimizer step in place, with the script's clipping, loss scaling and averaging.

        gradient: flat, in the layout of the stepped tensors (`stepped_layout`), as it was reduced.
        groups: settings of the param_groups in this step.
        has_state: False for the very first step, when torch has no state and initialises it (SGD's
        momentum starts as the gradient, without dampening).
        used: [parameters] bool, those that have a gradient; torch skips the others, without weight
        decay or step count. None: all.

        Raises ConfigError for user code that fails, StateError where the script would stop.
        """
        if writes_gradient(self._config):
            gradient = gradient.clone()
        used = np.ones(len(self._leaves), np.bool_) if used is None else used
        gradients = parameter_views(gradient, self._inner)
        if self._config.gradient_divisor != 1.0:
            for grad in gradients:
                grad.div_(self._config.gradient_divisor)
        for leaf, grad, taken in zip(self._leaves, gradients, used, strict=True):
            leaf.grad = grad if taken else None
        self.set_groups(groups)
        self.give_states(has_state=has_state)
        with self.trainers_threads():
            stepped = self._step()
        self._take_states_back(used)
        for leaf in self._leaves:
            leaf.grad = None
        if self._masters is not None:
            moved = [used[i] and stepped.get(id(own), False) for i, own in enumerate(self._of)]
            self._round(step, self._masters, moved)
        self._average(step, stepped=all(stepped.values()))

    def _step(self) -> dict[int, bool]:
        """{optimizer's id: False where a loss scale skipped it}, in the script's order."""
        config, arrays = self._config, self._arrays
        if config.scaler is not None:
            told = scaled_step(
                config,
                self.optimizers,
                arrays[SCALER],
                lambda: clip_gradients(config, self._leaves),
            )
            return {id(own): each for own, each in zip(self.optimizers, told, strict=True)}
        clip_gradients(config, self._leaves)
        for own in self.optimizers:
            own.step()
        return {id(own): True for own in self.optimizers}

    def _round(self, step: Step, masters: Sequence[torch.Tensor], moved: Sequence[bool]) -> None:
        named = self._description.layout.parameters
        for index, (own, master) in enumerate(zip(self.parameters, masters, strict=True)):
            if moved[index]:
                self._rounding.round(own, master, step, named[index].name)

    def _average(self, step: Step, *, stepped: bool) -> None:
        stated = self._config.average
        if stated is None or self._averages is None:
            return
        if averages_due(stated, step, stepped=stepped):
            update_averages(stated, self._averages, self.parameters, self._arrays[AVERAGED])

    def give_states(self, *, has_state: bool) -> None:
        """Passes the stored states to torch for parameters that have one, in place; torch creates
        the others. has_state: as in `step`."""
        held = has_state_mask(self._description, self._arrays, stepped=has_state)
        zeros = self._config.rule.made_as_zeros and STEPPED not in self._arrays
        for index, (leaf, optimizer) in enumerate(zip(self._leaves, self._of, strict=True)):
            if optimizer is not None:
                given = self.states[index].items() if held[index] or zeros else ()
                optimizer.state[leaf] = {name: own.value for name, own in given}

    @contextmanager
    def trainers_threads(self) -> Iterator[None]:
        """Context manager: torch uses the trainer's number of threads, where the result depends on
        it."""
        config = self._config
        alike = all(part.rule.per_element for part in config.per_optimizer) and not _two_bytes(
            self._inner
        )
        if alike and not has_clipping(config):
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(config.torch_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _take_states_back(self, used: np.ndarray) -> None:
        """Copies into our memory whatever torch put elsewhere, and notes who has a state now."""
        for index, (leaf, optimizer) in enumerate(zip(self._leaves, self._of, strict=True)):
            if not used[index] or optimizer is None:
                continue
            made = {k: v for k, v in optimizer.state[leaf].items() if v is not None}
            if not made and self.states[index] and STEPPED in self._arrays:
                continue  # a step that was skipped before torch made any
            if made.keys() != self.states[index].keys():
                own = sorted(self.states[index])
                raise AssertionError(f"torch keeps {sorted(made)}, not {own}")
            for name, own_state in self.states[index].items():
                _put(own_state, made[name])
            if STEPPED in self._arrays:
                self._arrays[STEPPED][index] = 1
        for each in self.optimizers:
            each.state.clear()


def _put(own: StoredState, made: Any) -> None:
    if own.number:
        own.tensor.fill_(made)
    elif made.data_ptr() != own.tensor.data_ptr():
        own.tensor.copy_(made)


def _two_bytes(layout: Layout) -> bool:
    types = {layout.dtype_of(p) for p in layout.parameters}
    return layout.dtype == SEVERAL_DTYPES or bool(types & {"float16", "bfloat16"})
