"""DeepSpeed folders without ZeRO and of ZeRO stages 1 and 2: written for any number of ranks, and
read without DeepSpeed.

latest                                         the tag
TAG/mp_rank_00_model_states.pt                 module, counters; without ZeRO the optimizer too
TAG/zero_pp_rank_N_mp_rank_00_optim_states.pt  rank N's part of each group's flat state

The reader joins the ranks' flat parts and splits them into parameters, as DeepSpeed's
utils/zero_to_fp32.py does. DeepSpeed's files hold objects of a few of its classes; the reader loads
stand-ins for these and refuses other classes. Stage 3, which shards each parameter, and tensor
parallelism, which splits layers by rules of each layer, are not written.

Sources: runtime/engine.py (_common_checkpoint_state, _load_checkpoint, _get_rank_zero_ckpt_name),
runtime/zero/stage_1_and_2.py (state_dict, _load_legacy_checkpoint), checkpoint/constants.py.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import deepspeed_checkpoints as findings
from flowcheck.findings.catalog.checkpoint_options import ZERO_STAGE
from flowcheck.findings.finding import Finding
from flowcheck.private_files import PRIVATE_FOLDER_MODE
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.untrusted_paths import checked_file_name
from flowcheck.vault.checkpoint_formats.checkpoint_contents import (
    CheckpointContents,
    refuse_several_optimizers,
)
from flowcheck.vault.checkpoint_formats.format_registry import NO_OPTIONS, FormatOptions
from flowcheck.vault.checkpoint_formats.tensor_storage import with_own_storage
from flowcheck.vault.checkpoint_formats.torch_save_format import write_tree
from flowcheck.vault.safe_torch_load import safe_torch_load, small_file_text

LATEST = "latest"
MODEL_STATES = "mp_rank_00_model_states.pt"
OPTIM_STATES = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


_SHARD = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")


class Standin:
    """Stands for an object of one of DeepSpeed's classes, whose content is not used."""


STANDINS = (
    (int, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (Standin, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Standin, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (Standin, "deepspeed.utils.tensor_fragment.fragment_address"),
)


def read(folder: Path) -> dict[str, Any]:
    """{"model", "optimizer", "scheduler", "masters", "step"}, without the parts that the folder
    does not have. Raises StateError for tensor parallelism, stage 3, and shards that do not fit
    together."""
    place = _place(folder)
    held = sorted(path.name for path in place.glob("*_model_states.pt"))
    if len(held) > 1 or any("zero_pp_rank_" in name for name in held):
        raise StateError(findings.MODEL_PARALLEL(place))
    if not held:
        raise StateError(findings.MODEL_STATES_MISSING(folder=place, found=0, ranks=1))
    told = _loaded(place / MODEL_STATES)
    if isinstance(ranks := told.get("mp_world_size"), int) and ranks > len(held):
        missing = findings.MODEL_STATES_MISSING(folder=place, found=len(held), ranks=ranks)
        raise StateError(missing)
    module = told.get("module")
    if not isinstance(module, dict) or not isinstance(told.get("global_steps"), int):
        raise StateError(findings.NO_MODULE(place / MODEL_STATES))
    found: dict[str, Any] = {"model": dict(module), "step": told["global_steps"]}
    if isinstance(told.get("lr_scheduler"), dict):
        found["scheduler"] = told["lr_scheduler"]
    if isinstance(told.get("optimizer"), dict):
        return {**found, "optimizer": told["optimizer"]}
    parts = _ranks(place)
    if not parts and told.get("param_shapes"):  # only ZeRO's shards have the optimizer's state then
        ranks = str(told.get("dp_world_size"))
        raise StateError(findings.SHARDS_MISSING(folder=place, found=0, ranks=ranks))
    if parts:
        masters, optimizer = _whole(place, told.get("param_shapes"), parts)
        found["optimizer"] = optimizer
        if any(module[name].dtype != torch.float32 for name in masters if name in module):
            found["masters"] = masters
    return found


def _place(folder: Path) -> Path:
    if any(any(folder.glob(f"*_{end}_states.pt")) for end in ("model", "optim")):
        return folder
    try:
        tag = small_file_text(folder / LATEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        no_tag = findings.NO_TAG(folder=folder, file=MODEL_STATES, latest=LATEST)
        raise StateError(no_tag) from error
    return folder / checked_file_name(tag, str(folder / LATEST))


def _loaded(path: Path) -> dict[str, Any]:
    tree = safe_torch_load(path, STANDINS)
    if not isinstance(tree, dict):
        raise StateError(findings.NO_DICTIONARY(path))
    return tree


def _ranks(place: Path) -> list[dict[str, Any]]:
    """The optimizer_state_dict of every rank, in the order of ranks; [] without ZeRO."""
    named = {}
    for file in place.glob("*_optim_states.pt"):
        told = _SHARD.fullmatch(file.name)
        if told is None:
            raise StateError(findings.MODEL_PARALLEL_SHARD(file))
        named[int(told[1])] = file
    if sorted(named) != list(range(len(named))):
        raise StateError(findings.RANKS_MISSING(folder=place, ranks=sorted(named)))
    parts: list[dict[str, Any]] = []
    for rank in range(len(named)):
        part = _loaded(named[rank]).get("optimizer_state_dict")
        if not isinstance(part, dict) or part.get("zero_stage") not in (1, 2):
            raise StateError(findings.OTHER_STAGE(named[rank]))
        counts = part.get("partition_count")
        ranks = max(counts) if isinstance(counts, list) and counts else counts
        if ranks != len(named):
            missing = findings.SHARDS_MISSING(folder=place, found=len(named), ranks=str(ranks))
            raise StateError(missing)
        parts.append(part)
    return parts


def _whole(
    place: Path, shapes: Any, parts: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(float32 parameters by name, the optimizer's state_dict with names), joined from all
    ranks."""
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
        raise StateError(findings.SHARDS_DO_NOT_FIT(folder=place, error=error)) from error
    return masters, {"state": states, "param_groups": groups}


def _state(part: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """A rank's optimizer state of one group: from a state_dict, or from a list as in elastic
    checkpoints."""
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
            short = {"parameter": name, "elements": flat.numel()}
            raise StateError(findings.SHARDS_TOO_SHORT(folder=place, **short))
        found[name] = flat[at : at + count].reshape(tuple(shape))
        at += count
    return found


VERSION = "0.14.0"
"""Version of DeepSpeed whose layout is written. Later versions read it; all require one above
0.3.17."""
ALIGN = 2
"""Each rank's part of a flat group is a multiple of this number of elements
(nccl_start_alignment_factor)."""


def write(
    parts: CheckpointContents, folder: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the folder; see `CheckpointFormat.write`. Raises ConfigError for a stage above 2,
    StateError that names a parameter whose state ZeRO's flat groups cannot hold, or as `read` for
    an earlier folder that is damaged."""
    options = _as_like(options)
    if options.stage not in (0, 1, 2):
        raise ConfigError("--zero", options.stage, ZERO_STAGE())
    refuse_several_optimizers(parts, "DeepSpeed")
    step = parts.trainer_state.step
    place = folder / f"global_step{step}"
    place.mkdir(mode=PRIVATE_FOLDER_MODE)
    own = "" if options.stage == 0 else "bf16_" * _in_bfloat16(parts)
    shapes = _shapes(parts) if options.stage else None
    module = _module(parts, options, shapes)
    name = f"{place.name}/{MODEL_STATES}"
    write_tree(with_own_storage(module), folder / name, name, sums)
    for rank in range(options.ranks if options.stage else 0):
        name = f"{place.name}/{own}{OPTIM_STATES.format(rank)}"
        tree = {
            "optimizer_state_dict": _part(parts, options, rank),
            "ds_config": {},
            "ds_version": VERSION,
        }
        write_tree(with_own_storage(tree), folder / name, name, sums, part=f"{rank}/")
    (folder / LATEST).write_text(place.name)
    sums.file(LATEST, folder / LATEST)
    return parts.resume_caveats


def _as_like(options: FormatOptions) -> FormatOptions:
    """With the ranks and the stage of the earlier folder of the trainer, where neither is
    stated."""
    stated = (options.ranks, options.stage) != (NO_OPTIONS.ranks, NO_OPTIONS.stage)
    if stated or options.like is None or not recognizes(options.like):
        return options
    parts = _ranks(_place(options.like))
    if not parts:
        return options
    return replace(options, ranks=len(parts), stage=int(parts[0]["zero_stage"]))


def recognizes(folder: Path) -> bool:
    """Whether the folder, or a folder in it, has DeepSpeed's files of a model or its optimizer."""
    patterns = ("*_model_states.pt", "*_optim_states.pt", "*/*_model_states.pt")
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _module(parts: CheckpointContents, options: FormatOptions, shapes: Any) -> dict[str, Any]:
    given, frozen = parts.trainer_state, parts.frozen
    owned = given.model.keys() | frozen
    first = {id(value): name for name, value in reversed(list(parts.model.items()))}
    tied = {n: first[id(v)] for n, v in parts.model.items() if first[id(v)] != n}
    return {
        "module": OrderedDict(parts.model),
        "buffer_names": [name for name in parts.untied if name not in owned],
        "optimizer": given.optimizer if options.stage == 0 else None,
        "param_shapes": shapes,
        "frozen_param_shapes": OrderedDict((name, one.shape) for name, one in frozen.items()),
        "frozen_param_fragments": OrderedDict(frozen),
        "shared_params": tied,
        "lr_scheduler": given.scheduler,
        "skipped_steps": given.step - (given.optimizer_steps or given.step),
        "global_steps": given.step,
        "dp_world_size": options.ranks,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": VERSION,
    }


def _in_bfloat16(parts: CheckpointContents) -> bool:
    return any(value.dtype == torch.bfloat16 for value in parts.trainer_state.model.values())


def _groups(parts: CheckpointContents) -> list[list[str]]:
    if parts.trainer_state.optimizer is None:
        raise StateError(findings.NO_OPTIMIZER_STATE())
    stepped = parts.trainer_state.model
    return [[name for name in g["params"] if name in stepped] for g in parts.named_groups]


def _shapes(parts: CheckpointContents) -> list[OrderedDict[str, torch.Size]]:
    model = parts.trainer_state.model
    return [OrderedDict((name, model[name].shape) for name in names) for names in _groups(parts)]


def _part(parts: CheckpointContents, options: FormatOptions, rank: int) -> dict[str, Any]:
    """The optimizer_state_dict of one rank."""
    states, flats, paddings = {}, [], []
    for number, names in enumerate(_groups(parts)):
        kinds, numbers = _kinds(parts, names)
        held = {
            kind: _part_of_rank(
                [parts.named_states[name][kind] for name in names], options.ranks, rank
            )
            for kind in kinds
        }
        states[number] = {**numbers, **{kind: part for kind, (part, _) in held.items()}}
        part, padding = _part_of_rank([_master(parts, name) for name in names], options.ranks, rank)
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


def _kinds(parts: CheckpointContents, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(states with a parameter's shape, {state: its value} of states that a group has once). Raises
    StateError for a parameter whose states are from another step than the others' or have another
    shape."""
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
            raise StateError(findings.OTHER_STEP_IN_GROUP(parameter=name, first=names[0]))
        if wrong := [k for k in flat if own[k].shape != parts.trainer_state.model[name].shape]:
            raise StateError(findings.OTHER_STATE_SHAPE(parameter=name, state=wrong[0]))
    return flat, one


def _master(parts: CheckpointContents, name: str) -> torch.Tensor:
    value = (parts.trainer_state.masters or parts.trainer_state.model)[name]
    if value.dtype != torch.float32:
        raise StateError(findings.NO_FLOAT32_MASTER(name))
    return value


def _part_of_rank(
    tensors: Sequence[torch.Tensor], ranks: int, rank: int
) -> tuple[torch.Tensor, int]:
    """(one rank's part of the tensors laid back to back, number of zeros at its end)."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    padding = -flat.numel() % (ALIGN * ranks)
    each = (flat.numel() + padding) // ranks
    part = flat[rank * each : (rank + 1) * each]
    more = each - part.numel()
    return (torch.cat([part, part.new_zeros(more)]) if more else part.clone()), more
