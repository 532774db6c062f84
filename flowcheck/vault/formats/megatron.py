"""Megatron-LM's folders of one model-parallel rank are read; none is written.

latest_checkpointed_iteration.txt              the iteration, or "release"
iter_0000100/mp_rank_00/model_optim_rng.pt     {"args", "iteration", "model", "optimizer", ...}

Source: Megatron-LM's megatron/training/checkpointing.py (get_checkpoint_name, save_checkpoint).
That loader is in no package that could be tried (megatron-core holds megatron.core alone), it asks
for the run's own arguments, and its optimizer keeps states by ranges of buffers: a folder of ours
would be a guess. Its newer torch_dist folders are those of torch.distributed.checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError, StateError
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.foreign import load_tree
from flowcheck.vault.formats.parts import Options, Parts
from flowcheck.vault.formats.told import MEGATRON_LATEST

RANK_FILE = "mp_rank_00/model_optim_rng.pt"
REFUSED = (
    "is read, not written: Megatron-LM's loader wants the run's arguments and optimizer buffers; a "
    "checkpoint that the run wrote, given as --template, is filled as it is"
)


def write(parts: Parts, folder: Path, options: Options, sums: Sums) -> str:
    """Raises ConfigError, which says what to do instead."""
    raise ConfigError("--format", "megatron", REFUSED)


def read(folder: Path) -> Any:
    """What rank 0 saved. Raises StateError for several model-parallel ranks."""
    place = _place(folder)
    ranks = sorted(path.name for path in place.glob("mp_rank_*"))
    if len(ranks) > 1:
        raise StateError(f"{place}: is of {len(ranks)} model-parallel ranks; one is read")
    return load_tree(place / RANK_FILE)


def _place(folder: Path) -> Path:
    if (folder / RANK_FILE).is_file():
        return folder
    try:
        told = (folder / MEGATRON_LATEST).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{folder}: holds no {RANK_FILE}, and no {MEGATRON_LATEST}") from error
    if told != "release" and not (told.isascii() and told.isdigit() and len(told) < 19):
        raise StateError(f"{folder / MEGATRON_LATEST}: {told!r} is no iteration")
    return folder / ("release" if told == "release" else f"iter_{int(told):07d}")
