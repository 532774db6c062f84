"""Megatron-LM's folders of one model-parallel rank (--ckpt-format torch).

latest_checkpointed_iteration.txt              the iteration, or "release"
iter_0000100/mp_rank_00/model_optim_rng.pt     {"args", "iteration", "model", "optimizer", ...}

Source: Megatron-LM's megatron/training/checkpointing.py (get_checkpoint_name, generate_state_dict,
load_checkpoint). What of a file no step of a replica tells comes from an earlier one of the run.
Its newer torch_dist folders are those of torch.distributed.checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.outside_names import refuse_odd
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.foreign import load_tree, only_allowed, text_of
from flowcheck.vault.formats.megatron_fill import filled
from flowcheck.vault.formats.parts import Options, Parts
from flowcheck.vault.formats.storages import alone
from flowcheck.vault.formats.told import MEGATRON_LATEST
from flowcheck.vault.formats.torchfile import write_tree
from flowcheck.vault.opaque import PICKLING, allowed, revived

RANK_FILE = "mp_rank_00/model_optim_rng.pt"
OWN = ("megatron.", "transformer_engine.", "signal.", "enum.")
"""Modules of what a run keeps beside its tensors (args, the rerun state machine)."""
LIKE = (
    "names an earlier checkpoint of the run (its folder): the args that its loader asserts, bounds "
    "of the schedule, random states and the optimizer's groups come from it; or give that "
    "checkpoint's file as --template"
)


def write(parts: Parts, folder: Path, options: Options, sums: Sums) -> str:
    """Writes the folder. Raises ConfigError without an earlier checkpoint, StateError where that is
    of another model or optimizer."""
    if options.like is None:
        raise ConfigError("--like", None, LIKE)
    tree = _loaded(_file_of(options.like))
    told = filled(tree, parts, str(options.like))
    name = f"iter_{parts.given.step:07d}/{RANK_FILE}"
    (folder / name).parent.mkdir(parents=True)
    write_tree(alone(tree), folder / name, name, sums, pickling=PICKLING)
    (folder / MEGATRON_LATEST).write_text(str(parts.given.step))
    sums.file(MEGATRON_LATEST, folder / MEGATRON_LATEST)
    return "; ".join([*([parts.lacks] if parts.lacks else []), *told])


def read(folder: Path) -> Any:
    """What rank 0 saved. Raises StateError for several model-parallel ranks."""
    return _loaded(_file_of(folder))


def _file_of(folder: Path) -> Path:
    if folder.is_file():
        return folder
    place = _place(folder)
    ranks = sorted(path.name for path in place.glob("mp_rank_*"))
    if len(ranks) > 1:
        raise StateError(f"{place}: is of {len(ranks)} model-parallel ranks; one is read")
    return place / RANK_FILE


def _loaded(path: Path) -> Any:
    """The tree; objects of classes of Megatron's own stand in it as they lie there."""
    refuse_odd(path)
    try:
        with only_allowed(()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # torch raises whatever its unpickler meets: it is told below
        names = []
    own = [name for name in names if name.startswith(OWN)]
    return revived(load_tree(path, allowed(own)), str(path))


def _place(folder: Path) -> Path:
    if (folder / RANK_FILE).is_file():
        return folder
    try:
        told = text_of(folder / MEGATRON_LATEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{folder}: holds no {RANK_FILE}, and no {MEGATRON_LATEST}") from error
    if told != "release" and not (told.isascii() and told.isdigit() and len(told) < 19):
        raise StateError(f"{folder / MEGATRON_LATEST}: {told!r:.60} is no iteration")
    return folder / ("release" if told == "release" else f"iter_{int(told):07d}")
