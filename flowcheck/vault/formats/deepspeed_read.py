"""DeepSpeed's folders read without DeepSpeed: ranks' flat parts are put together and cut into
parameters, as its own utils/zero_to_fp32.py does.

Of its classes that its files hold, stand-ins that do nothing are let in; no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.outside_names import single_name
from flowcheck.vault.foreign import load_tree, text_of

LATEST = "latest"
MODEL_STATES = "mp_rank_00_model_states.pt"
OPTIM_STATES = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


_SHARD = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")


class Standin:
    """In place of an object of DeepSpeed's own: what it holds is not looked at."""


STANDINS = (
    (int, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (Standin, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Standin, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (Standin, "deepspeed.utils.tensor_fragment.fragment_address"),
)


def read_folder(folder: Path) -> dict[str, Any]:
    """{"model", "optimizer", "scheduler", "masters", "step"}, as far as there are any. Raises
    StateError for tensor parallelism, stage 3, and shards that do not fit together."""
    place = _place(folder)
    if len(list(place.glob("*_model_states.pt"))) > 1:
        raise StateError(f"{place}: is of several model-parallel ranks or of ZeRO's stage 3")
    told = _loaded(place / MODEL_STATES)
    module = told.get("module")
    if not isinstance(module, dict) or not isinstance(told.get("global_steps"), int):
        raise StateError(f"{place / MODEL_STATES}: holds no module, or no global_steps")
    found: dict[str, Any] = {"model": dict(module), "step": told["global_steps"]}
    if isinstance(told.get("lr_scheduler"), dict):
        found["scheduler"] = told["lr_scheduler"]
    if isinstance(told.get("optimizer"), dict):
        return {**found, "optimizer": told["optimizer"]}
    if parts := _ranks(place):
        masters, optimizer = _whole(place, told.get("param_shapes"), parts)
        found["optimizer"] = optimizer
        if any(module[name].dtype != torch.float32 for name in masters if name in module):
            found["masters"] = masters
    return found


def _place(folder: Path) -> Path:
    if (folder / MODEL_STATES).is_file():
        return folder
    try:
        tag = text_of(folder / LATEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        what = f"{folder}: holds no {MODEL_STATES}, and no {LATEST} that names a tag"
        raise StateError(what) from error
    return folder / single_name(tag, str(folder / LATEST))


def _loaded(path: Path) -> dict[str, Any]:
    tree = load_tree(path, STANDINS)
    if not isinstance(tree, dict):
        raise StateError(f"{path}: holds no dictionary")
    return tree


def _ranks(place: Path) -> list[dict[str, Any]]:
    """Every rank's optimizer_state_dict, in order."""
    named = {}
    for file in place.glob("*_optim_states.pt"):
        told = _SHARD.fullmatch(file.name)
        if told is None:
            raise StateError(f"{file}: is of several model-parallel ranks")
        named[int(told[1])] = file
    if sorted(named) != list(range(len(named))):
        raise StateError(f"{place}: of ranks {sorted(named)} some are missing")
    parts: list[dict[str, Any]] = []
    for rank in range(len(named)):
        part = _loaded(named[rank]).get("optimizer_state_dict")
        if not isinstance(part, dict) or part.get("zero_stage") not in (1, 2):
            raise StateError(f"{named[rank]}: is not of ZeRO's stage 1 or 2")
        counts = part.get("partition_count")
        ranks = max(counts) if isinstance(counts, list) and counts else counts
        if ranks != len(named):
            raise StateError(f"{place}: {len(named)} of {ranks} ranks' shards are there")
        parts.append(part)
    return parts


def _whole(
    place: Path, shapes: Any, parts: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(float32 parameters by name, an optimizer's state_dict by name)."""
    try:
        masters: dict[str, torch.Tensor] = {}
        states: dict[str, dict[str, Any]] = {}
        groups = []
        for number, own in enumerate(shapes):
            flat = torch.cat([part["single_partition_of_fp32_groups"][number] for part in parts])
            masters |= _split(place, flat, own)
            held = [_state(part, number) for part in parts]
            for kind, first in held[0].items():
                if isinstance(first, torch.Tensor) and first.dim() > 0:
                    whole = torch.cat([state[kind] for state in held])
                    split: Mapping[str, Any] = _split(place, whole, own)
                else:
                    split = dict.fromkeys(own, first)
                for name, value in split.items():
                    states.setdefault(name, {})[kind] = value
            base = parts[0]["base_optimizer_state"]
            group = base["param_groups"][number] if isinstance(base, dict) else {}
            groups.append({**group, "params": list(own)})
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise StateError(f"{place}: its shards do not fit together: {error}") from error
    return masters, {"state": states, "param_groups": groups}


def _state(part: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Of one group: of a rank's own optimizer, or, as elastic checkpoints have it, of a list."""
    base = part["base_optimizer_state"]
    whole = base["state"] if isinstance(base, dict) else dict(enumerate(base))
    found: Mapping[str, Any] = whole.get(number, {})
    return found


def _split(
    place: Path, flat: torch.Tensor, shapes: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    found, at = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        if at + count > flat.numel():
            raise StateError(f"{place}: {name}: the shards hold {flat.numel()} elements, too few")
        found[name] = flat[at : at + count].reshape(tuple(shape))
        at += count
    return found
