"""Master weights: wider copies of the parameters that the optimizer steps, and how they are
rounded back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import (
    ROUNDED_OTHERWISE,
    TENSOR_SHAPE,
    UNSEEDED_ROUNDING,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.user_code import load_callable, user_error_finding
from flowcheck.step_numbers import Step

KEY = "optimizer.rounding"


def stepped_layout(config: OptimizerConfig, layout: Layout) -> Layout:
    """Layout of the tensors that the optimizer steps: `layout` itself, or with the dtype of the
    master weights."""
    if config.master_dtype is None or {layout.dtype} == {config.master_dtype}:
        return layout
    return layout.with_single_dtype(config.master_dtype)


def _shape_of(tensor: torch.Tensor) -> Finding:
    return TENSOR_SHAPE(dtype=str(tensor.dtype), shape=tuple(tensor.shape))


class Rounding:
    """Rounds master weights to the model's parameters: to nearest as torch does, or with the
    user's own function."""

    def __init__(self, config: OptimizerConfig) -> None:
        self._where = config.rounding
        self._function: Callable[..., Any] | None = None
        self._proved = False

    def round(self, parameter: torch.Tensor, master: torch.Tensor, step: Step, name: str) -> None:
        """Rounds `master` into `parameter`. step and name are passed to the user's function.
        Raises ConfigError where that function fails, returns another dtype or shape, or returns
        different bits when it is called again."""
        if self._where is None:
            parameter.copy_(master)
            return
        made = self._rounded(self._where, parameter, master, step, name)
        if not self._proved:
            again = self._rounded(self._where, parameter, master, step, name)
            if not torch.equal(_bits(made), _bits(again)):
                raise ConfigError(KEY, self._where, UNSEEDED_ROUNDING())
            self._proved = True
        parameter.copy_(made)

    def _rounded(
        self, where: str, parameter: torch.Tensor, master: torch.Tensor, step: Step, name: str
    ) -> torch.Tensor:
        if self._function is None:
            self._function = load_callable(KEY, where)
        try:
            made: Any = self._function(master.clone(), step, name)
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(KEY, where, user_error_finding(error)) from error
        good = isinstance(made, torch.Tensor) and made.shape == parameter.shape
        if not good or made.dtype != parameter.dtype:
            found = _shape_of(made) if isinstance(made, torch.Tensor) else str(made)
            own = {"dtype": str(parameter.dtype), "shape": tuple(parameter.shape)}
            raise ConfigError(KEY, where, ROUNDED_OTHERWISE(found=found, **own))
        rounded: torch.Tensor = made.contiguous()
        return rounded


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
