"""How a step gets from the committed copy into another: in one pass of C where the rule fits, else
by torch on a copy of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.kept.digest import tensor_digests
from flowcheck.replica.kept.state import StateFile
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import onepass, optimizers
from flowcheck.replica.rules.clipping import factor
from flowcheck.replica.rules.flatpass import FlatPass
from flowcheck.replica.rules.optimizers import STEP_COUNT, STEPPED, BoundOptimizer, Used
from flowcheck.replica.rules.placed import Placed, bound
from flowcheck.replica.rules.schedule import Rate, rate_of
from flowcheck.replica.tensors import Tensors, views


class Taker:
    """What takes the steps of one state file."""

    def __init__(self, state: StateFile, optimizer: OptimizerConfig, layout: Layout) -> None:
        self._optimizer, self._layout = optimizer, layout
        self._sections = [state.sections(copy) for copy in range(state.copies)]
        self._whole = [state.whole_copy(copy) for copy in range(state.copies)]
        self._bound = [bound(optimizer, layout, sections) for sections in self._sections]
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "step")
        self.unfit = self._why_not_one_pass()
        """Why torch takes the steps, in a few words; None where C does."""

    def _why_not_one_pass(self) -> str | None:
        first = self._bound[0]
        if isinstance(first, Placed):
            return "there is no optimizer"
        return onepass.unfit(first.optimizer, self._layout)

    @cached_property
    def _flat(self) -> FlatPass:
        return FlatPass(self._layout, [s for s in self._sections[0] if s not in _COUNTS])

    @cached_property
    def _rate(self) -> Rate:
        """Only steps ask for it: a replica is kept also where its schedule cannot be had."""
        return rate_of(self._optimizer)

    def tensors(self, copy: int) -> tuple[Tensors, dict[str, Tensors]]:
        """(parameters, states by name) of a copy, in place."""
        return self._bound[copy].parameters, self._bound[copy].states

    def take(
        self, step: int, good: int, other: int, gradient: torch.Tensor, has_state: bool, used: Used
    ) -> list[bytes]:
        """Makes `step` of the copy `good` in the copy `other`; every tensor's digest, in the order
        of `optimizers.named_tensors`.

        gradient: [layout.elements] as it was reduced; has_state: a step was taken before.
        """
        taker = self._bound[other]
        if self.unfit is None and isinstance(taker, BoundOptimizer):
            taker.set_rate(self._rate(step - 1))
            return self._in_one_pass(taker, good, other, gradient, has_state, used)
        torch.from_numpy(self._whole[other]).copy_(torch.from_numpy(self._whole[good]))
        if isinstance(taker, Placed):
            taker.place(step, gradient, used)
        else:
            taker.step(gradient, has_state, self._rate(step - 1), used)
        return self.digests(other)

    def _in_one_pass(
        self,
        taker: BoundOptimizer,
        good: int,
        other: int,
        gradient: torch.Tensor,
        has_state: bool,
        used: Used,
    ) -> list[bytes]:
        source, target = self._sections[good], self._sections[other]
        count = len(self._layout.parameters)
        taken = np.ones(count, np.bool_) if used is None else np.asarray(used, np.bool_)
        held = optimizers.have_state(self._optimizer, source, count, stepped=has_state)
        gradient, divisor, scale = self._reduced(gradient, taken)
        table = onepass.rows(
            taker.optimizer,
            taker.groups,
            source.get(STEP_COUNT),
            held,
            taken,
            divisor=divisor,
            scale=scale,
        )
        for name in _COUNTS & source.keys():
            np.copyto(target[name], source[name])
            target[name][taken] = target[name][taken] + 1 if name == STEP_COUNT else 1
        root = onepass.root_kind() or 0
        digests = self._flat.take(
            table, root, source, target, gradient.numpy(), self._pool, self._threads
        )
        return digests + tensor_digests(target[s] for s in source if s in _COUNTS)

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
        own = [g for g, has in zip(views(gradient, self._layout), taken, strict=True) if has]
        return gradient, 1.0, factor(own, config.clip_norm, threads=config.clip_threads)

    def digests(self, copy: int) -> list[bytes]:
        """Of every tensor of a copy, read once."""
        named = optimizers.named_tensors(self._sections[copy], self._layout)
        return tensor_digests((array for _, array in named), self._pool)

    def close(self) -> None:
        self._pool.shutdown()
        self._bound, self._sections, self._whole = [], [], []


_COUNTS = frozenset((STEP_COUNT, STEPPED))
"""Sections of one number a parameter."""
