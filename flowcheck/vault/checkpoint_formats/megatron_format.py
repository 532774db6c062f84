"""Megatron-LM folders of one model-parallel rank (--ckpt-format torch): read, and written by
filling in an earlier checkpoint of the run.

Sources, of Megatron-LM: core/optimizer/optimizer.py (FP32Optimizer.state_dict and
Float16OptimizerWithFloat16Params.state_dict: the inner optimizer below "optimizer",
"fp32_from_fp16_params" by groups), core/optimizer/grad_scaler.py (DynamicGradScaler),
core/optimizer_param_scheduler.py (num_steps counts samples), training/checkpointing.py
(load_checkpoint: "iteration", args.consumed_train_samples).

latest_checkpointed_iteration.txt              the iteration, or "release"
iter_0000100/mp_rank_00/model_optim_rng.pt     {"args", "iteration", "model", "optimizer", ...}

Source: Megatron-LM's megatron/training/checkpointing.py (get_checkpoint_name, generate_state_dict,
load_checkpoint). Megatron-LM's newer torch_dist folders are folders of
torch.distributed.checkpoint (dcp_format.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import megatron_checkpoints as findings
from flowcheck.findings.catalog import restored_state as gaps
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.untrusted_paths import refuse_special_file
from flowcheck.vault.checkpoint_formats.checkpoint_contents import (
    CheckpointContents,
    refuse_several_optimizers,
)
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.checkpoint_formats.pickle_stand_ins import (
    PICKLING,
    restore_numpy_arrays,
    stand_ins_for,
)
from flowcheck.vault.checkpoint_formats.tensor_storage import with_own_storage
from flowcheck.vault.checkpoint_formats.torch_save_format import write_tree
from flowcheck.vault.safe_torch_load import (
    only_allowed,
    safe_torch_load,
    small_file_text,
    structure_errors_as_state_errors,
)

MASTERS = "fp32_from_fp16_params"
SCHEDULERS = ("opt_param_scheduler", "lr_scheduler")
"""Keys of the scheduler's state. load_checkpoint prefers the second one."""
KEPT = {
    "rng_state": "random states",
    "rerun_state_machine": "the rerun state machine",
    "num_floating_point_operations_so_far": "the count of operations",
}


@structure_errors_as_state_errors("--like")
def fill_megatron_tree(tree: Any, parts: CheckpointContents, what: str) -> list[Finding]:
    """Puts the step into `tree`, the earlier checkpoint. what: its name in errors. Returns findings
    about parts that stay from the earlier step. Raises StateError if `tree` is of another model or
    optimizer."""
    if not isinstance(tree, dict) or not isinstance(tree.get("iteration"), int):
        raise StateError(findings.NO_ITERATION(what))
    if not isinstance(tree.get("model"), dict):
        raise StateError(findings.PIPELINE_STAGES(what))
    refuse_several_optimizers(parts, "Megatron-LM's folder")
    step, before = parts.trainer_state.step, tree["iteration"]
    _model_in(tree["model"], parts, what).update(parts.model)
    tree["iteration"] = step
    told: list[Finding] = []
    if parts.trainer_state.optimizer is None:
        told.append(gaps.EARLIER_OPTIMIZER(before))
    elif not isinstance(tree.get("optimizer"), dict):
        raise StateError(findings.NO_OPTIMIZER(what))
    else:
        told += _fill_optimizer(tree["optimizer"], parts, what, before)
        told += _fill_counts(tree, step - before, before)
    kept = [words for key, words in KEPT.items() if key in tree]
    return [*told, gaps.EARLIER_PARTS(parts=kept, step=before)] if kept else told


def _model_in(node: dict[str, Any], parts: CheckpointContents, what: str) -> dict[str, Any]:
    """The dictionary with the parameters; older versions of Megatron-LM nest it in others."""
    for found in _dicts(node):
        if found.keys() >= parts.trainer_state.model.keys():
            return found
    lost = next((name for name in parts.trainer_state.model if name not in node), "")
    raise StateError(findings.NO_PARAMETER(file=what, parameter=lost))


def _dicts(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for value in node.values():
        if isinstance(value, dict):
            yield from _dicts(value)


def _fill_optimizer(
    own: dict[str, Any], parts: CheckpointContents, what: str, before: int
) -> list[Finding]:
    inner = own["optimizer"] if isinstance(own.get("optimizer"), dict) else own
    groups, new = inner.get("param_groups"), parts.trainer_state.optimizer
    assert new is not None, "asked before"
    if not isinstance(groups, list) or not isinstance(inner.get("state"), dict):
        raise StateError(findings.OTHER_OPTIMIZER_FORM(what))
    sizes = [len(group["params"]) for group in groups]
    ours = [len(group["params"]) for group in new["param_groups"]]
    if sizes != ours:
        raise StateError(findings.OTHER_GROUPS(file=what, sizes=sizes, stated=ours))
    numbers = {
        mine: theirs
        for group, other in zip(new["param_groups"], groups, strict=True)
        for mine, theirs in zip(group["params"], other["params"], strict=True)
    }
    for mine, state in new["state"].items():
        kinds = _kinds(inner["state"].get(numbers[mine]), state, what, parts.numbers[mine])
        inner["state"][numbers[mine]] = {kind: state[kind] for kind in kinds}
    for group, other in zip(groups, new["param_groups"], strict=True):
        group["lr"] = other["lr"]
        if "step" in group:  # of fused optimizers that count once a group
            group["step"] = type(group["step"])(
                parts.trainer_state.optimizer_steps or parts.trainer_state.step
            )
    if own is not inner:
        _fill_masters(own, numbers, parts, what)
        return _fill_scale(own, parts, before)
    return []


def _kinds(
    theirs: Mapping[str, Any] | None, ours: Mapping[str, Any], what: str, parameter: str
) -> list[str]:
    if not theirs:
        return list(ours)
    if lost := [kind for kind in theirs if kind not in ours]:
        not_kept = {"parameter": parameter, "state": str(lost[0])}
        raise StateError(findings.STATE_NOT_KEPT(file=what, **not_kept))
    return list(theirs)


def _fill_masters(
    own: dict[str, Any], numbers: Mapping[int, int], parts: CheckpointContents, what: str
) -> None:
    """Fills in the master weights, which only two-byte parameters have, in the order of groups."""
    given = parts.trainer_state
    assert given.optimizer is not None, "asked before"
    masters = given.masters or {}
    new = []
    for group in given.optimizer["param_groups"]:
        names = [parts.numbers[number] for number in group["params"]]
        new.append([masters[n] for n in names if n in masters and given.model[n].itemsize == 2])
    theirs = [[tuple(one.shape) for one in group] for group in own.get(MASTERS, [])]
    if theirs != [[tuple(one.shape) for one in group] for group in new]:
        raise StateError(findings.OTHER_MASTERS(file=what, masters=MASTERS))
    own[MASTERS] = new


def _fill_scale(own: dict[str, Any], parts: CheckpointContents, before: int) -> list[Finding]:
    scaler, kept = parts.trainer_state.scaler, own.get("grad_scaler")
    if not kept:
        return []
    if scaler is None:
        return [gaps.EARLIER_LOSS_SCALE(before)]
    for key, value in (("scale", scaler["scale"]), ("growth_tracker", scaler["_growth_tracker"])):
        held = kept.get(key)
        kept[key] = torch.full_like(held, value) if isinstance(held, torch.Tensor) else value
    return [gaps.EARLIER_HYSTERESIS(before)]


def _fill_counts(tree: dict[str, Any], moved: int, before: int) -> list[Finding]:
    """Moves the numbers of samples, which both the schedule and the data loader count, by `moved`
    steps."""
    args = tree.get("args")
    each = getattr(args, "global_batch_size", None)
    if args is None or not isinstance(each, int) or getattr(args, "rampup_batch_size", None):
        return [gaps.EARLIER_SAMPLE_COUNTS(before)]
    for name in SCHEDULERS:
        if isinstance(tree.get(name), dict) and "num_steps" in tree[name]:
            tree[name]["num_steps"] += moved * each
    if isinstance(samples := getattr(args, "consumed_train_samples", None), int):
        args.consumed_train_samples = samples + moved * each
    return []


MEGATRON_LATEST = "latest_checkpointed_iteration.txt"
"""File with the newest iteration (megatron/training/checkpointing.py,
get_checkpoint_tracker_filename)."""
RANK_FILE = "mp_rank_00/model_optim_rng.pt"
OWN = ("megatron.", "transformer_engine.", "signal.", "enum.")
"""Prefixes of modules whose objects a run saves beside its tensors (args, the rerun state
machine)."""


def write(
    parts: CheckpointContents, folder: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the folder; see `CheckpointFormat.write`. Raises StateError if the earlier checkpoint
    is of another model or optimizer."""
    assert options.like is not None, "the table of formats says that it is needed"
    tree = _loaded(_file_of(options.like))
    told = fill_megatron_tree(tree, parts, str(options.like))
    name = f"iter_{parts.trainer_state.step:07d}/{RANK_FILE}"
    (folder / name).parent.mkdir(parents=True)
    write_tree(with_own_storage(tree), folder / name, name, sums, pickling=PICKLING)
    (folder / MEGATRON_LATEST).write_text(str(parts.trainer_state.step))
    sums.file(MEGATRON_LATEST, folder / MEGATRON_LATEST)
    return (*parts.resume_caveats, *told)


def read(folder: Path) -> Any:
    """The tree that rank 0 saved. Raises StateError for several model-parallel ranks, also where
    files of some are missing."""
    if folder.is_file():
        return _loaded(folder)
    place = _place(folder)
    held = sorted(place.glob("mp_rank_*/model_optim_rng.pt"))
    stated = len(list(place.glob("mp_rank_*")))
    tree = _loaded(place / RANK_FILE) if place / RANK_FILE in held else None
    ranks = max(stated, _model_parallel_ranks(tree))
    if len(held) < ranks:
        raise StateError(findings.RANKS_MISSING(folder=place, found=len(held), ranks=ranks))
    if ranks > 1:
        raise StateError(findings.SEVERAL_RANKS(folder=place, ranks=ranks))
    return tree


def recognizes(folder: Path) -> bool:
    """Whether the folder has the file with the newest iteration, or the ranks' folders of one."""
    shards = (path for path in folder.glob("mp_rank_*") if path.is_dir())
    return (folder / MEGATRON_LATEST).is_file() or any(shards)


def _file_of(folder: Path) -> Path:
    if folder.is_file():
        return folder
    place = _place(folder)
    ranks = sorted(path.name for path in place.glob("mp_rank_*"))
    if len(ranks) > 1:
        raise StateError(findings.SEVERAL_RANKS(folder=place, ranks=len(ranks)))
    return place / RANK_FILE


def _model_parallel_ranks(tree: Any) -> int:
    """Number of ranks among which the model is split, by the run's arguments
    (megatron/training/arguments.py); 1 where they do not tell."""
    args = tree.get("args") if isinstance(tree, dict) else None
    splits = ("tensor", "pipeline", "expert")
    sizes = [getattr(args, f"{name}_model_parallel_size", 1) for name in splits]
    return math.prod(size for size in sizes if isinstance(size, int))


def _loaded(path: Path) -> Any:
    """The tree in a file, with stand-ins for objects of Megatron-LM's classes."""
    refuse_special_file(path)
    try:
        with only_allowed(()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # torch raises whatever its unpickler meets: it is told below
        names = []
    own = [name for name in names if name.startswith(OWN)]
    return restore_numpy_arrays(safe_torch_load(path, stand_ins_for(own)), str(path))


def _place(folder: Path) -> Path:
    if any(folder.glob("mp_rank_*")):
        return folder
    try:
        told = small_file_text(folder / MEGATRON_LATEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        no_file = findings.NO_RANK_FILE(folder=folder, file=RANK_FILE, latest=MEGATRON_LATEST)
        raise StateError(no_file) from error
    if told != "release" and not (told.isascii() and told.isdigit() and len(told) < 19):
        place, text = folder / MEGATRON_LATEST, f"{told!r:.60}"
        raise StateError(findings.NO_ITERATION_NUMBER(file=place, text=text))
    return folder / ("release" if told == "release" else f"iter_{int(told):07d}")
