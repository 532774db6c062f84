"""The trainer's optimizer, run by torch itself on memory that we own.

Which arithmetic runs (for-loop, foreach, fused) decides the last bits, so it is stated, never
guessed. torch makes its state lazily and sometimes replaces a tensor instead of writing into it;
`step` makes sure that after it everything lies in our views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.kept.digest import Named
from flowcheck.replica.layout import Layout
from flowcheck.replica.tensors import flat_tensor, views

PARAMETERS = "parameters"
"""The section that holds the parameters."""
STEP_COUNT = "step"
"""Adam's per-parameter counters: one float32 each, as torch keeps them (optimizer.py,
_get_scalar_dtype)."""
STEPPED = "stepped"
"""Where a step may leave parameters out and torch counts none: one float32 each, 1 once it was
stepped. A parameter that never was has no state, as torch makes it in its first step. Without an
optimizer: the step that a parameter is of."""

Used = np.ndarray | None
"""[parameters] bool: those that have a gradient in a step; None: all."""


def state_names(config: OptimizerConfig) -> tuple[str, ...]:
    """torch's names of the per-element optimizer states, without the step counters."""
    if config.name == "none":
        return ()
    if config.name == "sgd":
        return ("momentum_buffer",) if config.momentum else ()
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if config.amsgrad else ()))


def counts_steps(config: OptimizerConfig) -> bool:
    """Whether torch keeps a step counter per parameter."""
    return config.name in ("adam", "adamw")


def fingerprint(config: OptimizerConfig) -> bytes:
    """16 bytes that change with any setting."""
    return xxhash.xxh3_128_digest(msgspec.json.encode(config, order="sorted"))


def build(config: OptimizerConfig, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """torch's optimizer over `parameters`. Raises StateError for settings torch refuses."""
    arguments: dict[str, Any] = {
        "lr": config.learning_rate,
        "maximize": config.maximize,
        "foreach": config.implementation == "foreach",
        "fused": config.implementation == "fused",
    }
    if config.weight_decay is not None:
        arguments["weight_decay"] = config.weight_decay
    if config.name == "sgd":
        arguments |= {
            "momentum": config.momentum,
            "dampening": config.dampening,
            "nesterov": config.nesterov,
        }
    else:
        arguments |= {"betas": config.betas, "eps": config.eps, "amsgrad": config.amsgrad}
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    try:
        return kinds[config.name](list(parameters), **arguments)
    except ValueError as error:
        raise StateError(
            f"optimizer {config.name}: torch refuses these settings: {error}"
        ) from error


def writes_gradient(config: OptimizerConfig) -> bool:
    """Whether the gradient is changed: divided, scaled in place by clipping, and foreach SGD adds
    Nesterov's momentum into the list it was given (torch/optim/sgd.py, _multi_tensor_sgd) unless
    weight decay or maximize made it a new one.
    """
    divided = config.gradient_divisor != 1.0
    return (
        divided
        or config.clip_norm is not None
        or (
            config.name == "sgd"
            and config.implementation == "foreach"
            and config.nesterov
            and not config.weight_decay
            and not config.maximize
        )
    )


def have_state(
    config: OptimizerConfig, sections: Mapping[str, np.ndarray], parameters: int, *, stepped: bool
) -> np.ndarray:
    """[parameters] bool: were they ever stepped? stepped: a step was taken at all."""
    if not stepped:
        return np.zeros(parameters, np.bool_)
    if counts_steps(config):
        return sections[STEP_COUNT] > 0
    if STEPPED in sections:
        return sections[STEPPED] > 0
    return np.ones(parameters, np.bool_)


def named_tensors(sections: Mapping[str, np.ndarray], layout: Layout) -> list[Named]:
    """Every tensor of a copy: "weight", "weight/exp_avg", ...; the step counters are one, and so
    is what was stepped."""
    values = [
        (p.name if section == PARAMETERS else f"{p.name}/{section}", array[p.start : p.stop])
        for section, array in sections.items()
        if section not in (STEP_COUNT, STEPPED)
        for p in layout.parameters
    ]
    counts = [(s, array) for s, array in sections.items() if s in (STEP_COUNT, STEPPED)]
    return values + counts


class BoundOptimizer:
    """torch's optimizer over the parameters and states of one copy of the replica.

    sections: flat arrays of the copy by name; `parameters`, torch's state names, and `step` as
    float32 [parameters] where the optimizer counts, else `stepped` where some may be left out.
    """

    def __init__(
        self, config: OptimizerConfig, layout: Layout, sections: Mapping[str, np.ndarray]
    ) -> None:
        self._config, self._layout = config, layout
        self._sections = sections
        self.parameters = views(flat_tensor(sections[PARAMETERS], layout), layout)
        self.states = {
            name: views(flat_tensor(sections[name], layout), layout) for name in state_names(config)
        }
        if counts_steps(config):
            counters = torch.from_numpy(sections[STEP_COUNT])
            self.states[STEP_COUNT] = [counters[i] for i in range(len(self.parameters))]
        self._optimizer = build(config, self.parameters)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """torch's own, its groups as the last `step` or `set_rate` left them."""
        return self._optimizer

    @property
    def groups(self) -> list[tuple[dict[str, Any], list[int]]]:
        """torch's groups, and the parameters of each by their number."""
        number = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        return [(g, [number[id(p)] for p in g["params"]]) for g in self._optimizer.param_groups]

    def set_rate(self, learning_rate: float) -> None:
        """The learning rate of the step that follows."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def step(
        self, gradient: torch.Tensor, has_state: bool, learning_rate: float, used: Used = None
    ) -> None:
        """One optimizer step in place. gradient: flat, [layout.elements], as it was reduced.

        has_state: False for the very first step, where torch has no state yet and does things it
        does only once (SGD's momentum starts as the gradient, without dampening). used: torch
        leaves out what has no gradient: no decay, no count.
        """
        if writes_gradient(self._config):
            gradient = gradient.clone()
        used = np.ones(len(self.parameters), np.bool_) if used is None else used
        gradients = views(gradient, self._layout)
        if self._config.gradient_divisor != 1.0:
            for grad in gradients:
                grad.div_(self._config.gradient_divisor)
        for parameter, grad, taken in zip(self.parameters, gradients, used, strict=True):
            parameter.grad = grad if taken else None
        self.set_rate(learning_rate)
        self._clip()
        held = have_state(self._config, self._sections, len(used), stepped=has_state)
        for index, parameter in enumerate(self.parameters):
            lazy = self._config.name == "sgd" and not held[index]
            self._optimizer.state[parameter] = (
                {} if lazy else {name: tensors[index] for name, tensors in self.states.items()}
            )
        self._optimizer.step()
        self._bring_home(used)
        if STEPPED in self._sections:
            self._sections[STEPPED][used] = 1
        for parameter in self.parameters:
            parameter.grad = None

    def _clip(self) -> None:
        """Scales the gradients as the trainer does, with as many threads as it has."""
        if self._config.clip_norm is None or self._config.clip_together:
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(self._config.clip_threads)
        try:
            torch.nn.utils.clip_grad_norm_(self.parameters, self._config.clip_norm)
        finally:
            torch.set_num_threads(threads)

    def _bring_home(self, used: np.ndarray) -> None:
        """Copies into our memory whatever torch put elsewhere."""
        for index, parameter in enumerate(self.parameters):
            if not used[index]:
                continue
            made = self._optimizer.state[parameter]
            if made.keys() != self.states.keys():
                raise AssertionError(f"torch keeps {sorted(made)}, not {sorted(self.states)}")
            for name, tensors in self.states.items():
                if made[name].data_ptr() != tensors[index].data_ptr():
                    tensors[index].copy_(made[name])
