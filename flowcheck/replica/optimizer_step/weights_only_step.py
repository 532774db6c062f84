"""Steps without an optimizer, for sharded training: weights are replaced by those gathered on the
wire. Chooses this or torch's step for a copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.flat_tensors import flat_tensor, parameter_views
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.state_sections import StoredState
from flowcheck.replica.optimizer_step.torch_step import InPlaceTorchOptimizers
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import Description
from flowcheck.step_numbers import Step


class WeightsOnlyStepper:
    """The parameters of one copy of a replica without an optimizer."""

    def __init__(self, layout: Layout, sections: Mapping[str, np.ndarray]) -> None:
        """sections: flat arrays `parameters`, and `stepped`: the step that each belongs to."""
        self._layout, self._sections = layout, sections
        self.parameters = parameter_views(
            flat_tensor(sections[state_section_names.PARAMETERS], layout), layout
        )
        self.states: list[dict[str, StoredState]] = [{} for _ in layout.parameters]

    def replace_weights(
        self, step: Step, values: torch.Tensor, used: state_section_names.GradientMask = None
    ) -> None:
        """Replaces parameters. values: [layout.elements] of `step`; used: [parameters] bool, those
        that arrived; None: all."""
        new = parameter_views(values, self._layout)
        for index, (own, value) in enumerate(zip(self.parameters, new, strict=True)):
            if used is None or used[index]:
                own.copy_(value)
                self._sections[state_section_names.STEPPED][index] = step


def stepper_for_copy(
    config: OptimizerConfig, description: Description, sections: Mapping[str, np.ndarray]
) -> InPlaceTorchOptimizers | WeightsOnlyStepper:
    """The stepper of one copy: without optimizer for sharded training, else with torch. sections:
    {name: flat array}. Raises ConfigError as `build_optimizer`."""
    if not config.computes_steps:
        return WeightsOnlyStepper(description.layout, sections)
    return InPlaceTorchOptimizers(config, description, sections)


def parameters_of_other_steps(
    config: OptimizerConfig, layout: Layout, sections: Mapping[str, np.ndarray], step: Step
) -> dict[str, int]:
    """{name: step that its value belongs to} of the parameters that did not arrive with `step`; {}
    with an optimizer."""
    if config.computes_steps:
        return {}
    steps = map(int, sections[state_section_names.STEPPED])
    return {p.name: of for p, of in zip(layout.parameters, steps, strict=True) if of != step}
