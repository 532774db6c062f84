"""Parameters that are followed as they are sent: a step puts new ones in the old ones' place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.kept.header import Description
from flowcheck.replica.kept.sections import Stored
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.bound import BoundOptimizer
from flowcheck.replica.tensors import flat_tensor, views
from flowcheck.step_numbers import Step


class Placed:
    """The parameters of one copy of the replica, without an optimizer."""

    def __init__(self, layout: Layout, sections: Mapping[str, np.ndarray]) -> None:
        """sections: `parameters`, and `stepped`: the step that each is of."""
        self._layout, self._sections = layout, sections
        self.parameters = views(flat_tensor(sections[optimizers.PARAMETERS], layout), layout)
        self.states: list[dict[str, Stored]] = [{} for _ in layout.parameters]

    def place(self, step: Step, values: torch.Tensor, used: optimizers.Used = None) -> None:
        """values: [layout.elements] of that step; used: [parameters] that came, None: all."""
        new = views(values, self._layout)
        for index, (own, value) in enumerate(zip(self.parameters, new, strict=True)):
            if used is None or used[index]:
                own.copy_(value)
                self._sections[optimizers.STEPPED][index] = step


def bound(
    config: OptimizerConfig, description: Description, sections: Mapping[str, np.ndarray]
) -> BoundOptimizer | Placed:
    """What steps one copy."""
    if config.name == "none":
        return Placed(description.layout, sections)
    return BoundOptimizer(config, description, sections)


def older(
    config: OptimizerConfig, layout: Layout, sections: Mapping[str, np.ndarray], step: Step
) -> dict[str, int]:
    """{parameter: the step it is of} of those that did not come with `step`."""
    if config.name != "none":
        return {}
    steps = map(int, sections[optimizers.STEPPED])
    return {p.name: of for p, of in zip(layout.parameters, steps, strict=True) if of != step}
