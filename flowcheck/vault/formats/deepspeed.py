"""DeepSpeed's folders, without ZeRO and in its stages 1 and 2, for as many ranks as are asked for.

latest                                         the tag
TAG/mp_rank_00_model_states.pt                 module, counters; without ZeRO the optimizer as well
TAG/zero_pp_rank_N_mp_rank_00_optim_states.pt  rank N's part of each group's flat state

Sources: runtime/engine.py (_common_checkpoint_state, _load_checkpoint, _get_rank_zero_ckpt_name),
runtime/zero/stage_1_and_2.py (state_dict, _load_legacy_checkpoint), checkpoint/constants.py.
Stage 3 cuts every parameter by itself, tensor parallelism by rules of each layer: neither is
written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.private_files import FOLDER
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.formats.deepspeed_read import LATEST, MODEL_STATES, OPTIM_STATES, read_folder
from flowcheck.vault.formats.parts import Options, Parts, refuse_several
from flowcheck.vault.formats.storages import alone
from flowcheck.vault.formats.torchfile import write_tree

VERSION = "0.14.0"
"""Of DeepSpeed, whose layout this is: later ones read it, and all ask for one above 0.3.17."""
ALIGN = 2
"""A flat group is a whole number of so many elements a rank (nccl_start_alignment_factor)."""


def write(parts: Parts, folder: Path, options: Options, sums: Sums) -> str:
    """Writes the folder. Raises ConfigError for another stage, StateError for what ZeRO's flat
    groups cannot hold, the parameter named."""
    if options.stage not in (0, 1, 2):
        raise ConfigError("--zero", options.stage, "is 0, 1 or 2: stage 3 is not written")
    refuse_several(parts, "DeepSpeed")
    step = parts.given.step
    place = folder / f"global_step{step}"
    place.mkdir(mode=FOLDER)
    own = "" if options.stage == 0 else "bf16_" * _in_bfloat16(parts)
    shapes = _shapes(parts) if options.stage else None
    module = _module(parts, options, shapes)
    name = f"{place.name}/{MODEL_STATES}"
    write_tree(alone(module), folder / name, name, sums)
    for rank in range(options.ranks if options.stage else 0):
        name = f"{place.name}/{own}{OPTIM_STATES.format(rank)}"
        tree = {
            "optimizer_state_dict": _part(parts, options, rank),
            "ds_config": {},
            "ds_version": VERSION,
        }
        write_tree(alone(tree), folder / name, name, sums, part=f"{rank}/")
    (folder / LATEST).write_text(place.name)
    sums.file(LATEST, folder / LATEST)
    return parts.lacks


def read(folder: Path) -> dict[str, Any]:
    """Module, optimizer, scheduler and step, of any number of ranks."""
    return read_folder(folder)


def _module(parts: Parts, options: Options, shapes: Any) -> dict[str, Any]:
    given, frozen = parts.given, parts.frozen
    owned = given.model.keys() | frozen
    first = {id(value): name for name, value in reversed(list(parts.model.items()))}
    tied = {n: first[id(v)] for n, v in parts.model.items() if first[id(v)] != n}
    return {
        "module": OrderedDict(parts.model),
        "buffer_names": [name for name in parts.own if name not in owned],
        "optimizer": given.optimizer if options.stage == 0 else None,
        "param_shapes": shapes,
        "frozen_param_shapes": OrderedDict((name, one.shape) for name, one in frozen.items()),
        "frozen_param_fragments": OrderedDict(frozen),
        "shared_params": tied,
        "lr_scheduler": given.scheduler,
        "skipped_steps": given.step - (given.taken or given.step),
        "global_steps": given.step,
        "dp_world_size": options.ranks,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": VERSION,
    }


def _in_bfloat16(parts: Parts) -> bool:
    return any(value.dtype == torch.bfloat16 for value in parts.given.model.values())


def _groups(parts: Parts) -> list[list[str]]:
    if parts.given.optimizer is None:
        raise StateError("there is no optimizer state: ZeRO's shards are nothing else")
    stepped = parts.given.model
    return [[name for name in g["params"] if name in stepped] for g in parts.named_groups]


def _shapes(parts: Parts) -> list[OrderedDict[str, torch.Size]]:
    model = parts.given.model
    return [OrderedDict((name, model[name].shape) for name in names) for names in _groups(parts)]


def _part(parts: Parts, options: Options, rank: int) -> dict[str, Any]:
    """One rank's optimizer_state_dict."""
    states, flats, paddings = {}, [], []
    for number, names in enumerate(_groups(parts)):
        kinds, numbers = _kinds(parts, names)
        held = {
            kind: _cut([parts.named_states[name][kind] for name in names], options.ranks, rank)
            for kind in kinds
        }
        states[number] = {**numbers, **{kind: part for kind, (part, _) in held.items()}}
        part, padding = _cut([_master(parts, name) for name in names], options.ranks, rank)
        flats.append(part[: part.numel() - padding].clone() if padding else part)
        paddings.append(padding)
    groups = [{**g, "params": [n]} for n, g in enumerate(parts.named_groups)]
    return {
        "base_optimizer_state": {
            "state": {number: state for number, state in states.items() if state},
            "param_groups": groups,
        },
        "single_partition_of_fp32_groups": flats,
        "zero_stage": options.stage,
        "group_paddings": paddings,
        "partition_count": [options.ranks] * len(groups),
        "overflow": False,
        "ds_version": VERSION,
        "param_slice_mappings": [],
    }


def _kinds(parts: Parts, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(states of a parameter's shape, states that the group has one of). Raises StateError for a
    parameter that is not at the same step as the others, or has states of another shape."""
    held = parts.named_states
    first = held.get(names[0], {})
    flat, one = [], {}
    for kind, value in first.items():
        # A parameter of no dimensions has states like numbers: those of the others tell.
        every = (held.get(name, {}).get(kind) for name in names)
        if any(isinstance(own, torch.Tensor) and own.dim() > 0 for own in every):
            flat.append(kind)
        else:
            one[kind] = value
    for name in names:
        own = held.get(name, {})
        if own.keys() != first.keys() or any(own[k] != value for k, value in one.items()):
            raise StateError(
                f"{name}: is not at the step of {names[0]}, and ZeRO keeps one for a whole group"
            )
        if wrong := [k for k in flat if own[k].shape != parts.given.model[name].shape]:
            raise StateError(f"{name}/{wrong[0]}: ZeRO keeps states of the parameter's shape alone")
    return flat, one


def _master(parts: Parts, name: str) -> torch.Tensor:
    value = (parts.given.masters or parts.given.model)[name]
    if value.dtype != torch.float32:
        raise StateError(f"{name}: ZeRO keeps a float32 master, and the replica has none of it")
    return value


def _cut(tensors: Sequence[torch.Tensor], ranks: int, rank: int) -> tuple[torch.Tensor, int]:
    """(one rank's part of the tensors back to back, zeros at its end)."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    padding = -flat.numel() % (ALIGN * ranks)
    each = (flat.numel() + padding) // ranks
    part = flat[rank * each : (rank + 1) * each]
    more = each - part.numel()
    return (torch.cat([part, part.new_zeros(more)]) if more else part.clone()), more
