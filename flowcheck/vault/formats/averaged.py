"""Averages of weights in the form that torch's own class of them loads."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def averaged_state(
    model: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor] | None,
    averaged: int,
) -> dict[str, torch.Tensor] | None:
    """As torch.optim.swa_utils.AveragedModel.state_dict has them: the module's own keys behind
    `module.`, and n_averaged. None without averages.

    model: the module's state_dict; parameters: by name, the tensors that stand in it; averages: by
    those names. What takes no steps is the module's own, as update_parameters copies buffers and as
    an average of equal weights is these.
    """
    if averages is None:
        return None
    of = {tensor.data_ptr(): averages[name] for name, tensor in parameters.items()}
    found = {f"module.{key}": of.get(tensor.data_ptr(), tensor) for key, tensor in model.items()}
    return {"n_averaged": torch.tensor(averaged, dtype=torch.long), **found}
