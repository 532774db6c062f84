"""Tells of a folder that is one checkpoint whether its writer is done with it.

Each library writes a file last: torch.distributed.checkpoint its .metadata, transformers' Trainer
trainer_state.json (trainer.py, Trainer._save_checkpoint: the model, optimizer.pt, scheduler.pt,
then that), accelerate the random states (checkpointing.py, save_accelerator_state), Megatron-LM the
file beside the folder that names the iteration (training/checkpointing.py, save_checkpoint).
Which ranks are missing is in the files themselves: the readers of Megatron-LM's and DeepSpeed's
folders refuse with a finding of INCOMPLETE.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowcheck.checkpoint_signatures import ZIP, checkpoint_kind
from flowcheck.errors import StateError
from flowcheck.findings.catalog import deepspeed_checkpoints as deepspeed
from flowcheck.findings.catalog import megatron_checkpoints as megatron
from flowcheck.findings.catalog.file_audits import (
    EMPTY_FILE,
    FILES_MISSING,
    NO_DIRECTORY,
    NO_LAST_FILE,
    NO_METADATA,
    NOT_A_CHECKPOINT,
    PART_NOT_WHOLE,
    SAVE_NOT_ENDED,
    STATE_MAY_FOLLOW,
)
from flowcheck.findings.finding import Finding
from flowcheck.vault.checkpoint_formats.dcp_reader import DCP_METADATA
from flowcheck.vault.checkpoint_formats.huggingface_format import (
    INDEX,
    OLD,
    OLD_INDEX,
    ONE,
    STATE,
    step_of_trainer,
    weight_files,
)
from flowcheck.vault.checkpoint_formats.megatron_format import MEGATRON_LATEST
from flowcheck.vault.checkpoint_formats.safetensors_format import recognizes, step_in
from flowcheck.vault.safe_torch_load import small_file_text

INCOMPLETE = (
    deepspeed.NO_TAG,
    deepspeed.MODEL_STATES_MISSING,
    deepspeed.RANKS_MISSING,
    deepspeed.SHARDS_MISSING,
    megatron.NO_RANK_FILE,
    megatron.RANKS_MISSING,
)
"""What a reader says of a folder that may become whole."""
SETTLED_S = 60.0
"""Seconds that a model's folder whose name is the Trainer's stands still before it is taken for a
model alone. A choice: shorter takes a slow save for one, longer compares a model alone later."""
BEGIN_BYTES = 512
"""Bytes that are read to tell what a file is."""
DCP_PARTS = ".distcp"
"""Suffix of the files of torch.distributed.checkpoint, which are there before its metadata."""
CHECKPOINT_SUFFIXES = frozenset((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar"))
"""Suffixes of checkpoints: such a file counts even while its beginning is not written yet."""
TRAINER_FILES = frozenset(("training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"))
"""Files that transformers' Trainer writes between its model and STATE (trainer.py)."""
ACCELERATE_FILES = frozenset(("optimizer.bin", "scheduler.bin", "sampler.bin"))
"""Files of accelerate's save_state between the model and the random states (utils/constants.py)."""
MISSING_SHOWN = 4
"""Missing files that are named; all are counted. A choice of layout."""
_SHARD = re.compile(r"(?:pytorch_)?model-\d+-of-\d+\.(?:safetensors|bin)")
"""A part of a model (huggingface_hub/serialization, split_torch_state_dict_into_shards)."""
_TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
"""transformers' trainer_utils.py, PREFIX_CHECKPOINT_DIR."""
_ITERATION = re.compile(r"iter_(\d+)")


def is_dcp(names: Iterable[str]) -> bool:
    """Whether the names in a folder are those of torch.distributed.checkpoint."""
    return any(name == DCP_METADATA or name.endswith(DCP_PARTS) for name in names)


def holds_model(names: Iterable[str]) -> bool:
    """Whether the names in a folder are those of a model of transformers, or of a part of one."""
    return any(
        name in (ONE, INDEX, OLD, OLD_INDEX) or _SHARD.fullmatch(name) is not None for name in names
    )


def is_beside_model(folder: Path, name: str, names: Iterable[str]) -> bool:
    """Whether a file in a folder of transformers' Trainer is none of its model's. Where the model's
    files are gone already, or are folders of their own, it is no checkpoint by itself."""
    own = name in TRAINER_FILES or name.startswith("rng_state")
    by_trainer = STATE in names or "training_args.bin" in names
    return own and (by_trainer or _TRAINER_FOLDER.fullmatch(folder.name) is not None)


def missing_in_folder(folder: Path, still_s: float) -> Finding | None:
    """Why a folder is not whole; None: nothing says that it is not. still_s: seconds for which it
    has not changed. Raises OSError."""
    names = {own.name for own in folder.iterdir()}
    if is_dcp(names):
        return None if DCP_METADATA in names else NO_METADATA()
    for file in _checkpoints_below(folder):
        if (cut := missing_in_file(file, named=False)) is not None:
            return PART_NOT_WHOLE(file=file.relative_to(folder), why=cut)
    return _missing_of_model(folder, names) or _last_file(folder, names, still_s)


def missing_in_file(path: Path, *, named: bool = True) -> Finding | None:
    """The same of one file. named: one of no known kind is told as that. Raises OSError."""
    begin = beginning(path)
    if begin.startswith(ZIP):
        return None if _has_zip_directory(path) else NO_DIRECTORY()
    if not begin:
        return EMPTY_FILE()
    if checkpoint_kind(begin) is None and named:
        return NOT_A_CHECKPOINT()
    try:
        if recognizes(path):
            step_in(path)
    except StateError as error:
        return error.finding
    return None


def beginning(path: Path) -> bytes:
    """The first BEGIN_BYTES of a file. Raises OSError, also for a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(BEGIN_BYTES)


def _checkpoints_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.suffix.lower() in CHECKPOINT_SUFFIXES and not path.is_symlink():
                yield path


def _missing_of_model(folder: Path, names: set[str]) -> Finding | None:
    """The files of a model in parts that its index names, or the index itself, which is written
    behind them."""
    if not holds_model(names):
        return None
    if not names & {ONE, INDEX, OLD, OLD_INDEX}:
        index = OLD_INDEX if any(name.startswith(OLD[:7]) for name in names) else INDEX
        return NO_LAST_FILE(file=index, writer="save_pretrained")
    try:
        files = weight_files(folder)
    except StateError as error:
        return error.finding  # an index that is written in this moment
    missing = [name for name in files if name not in names]
    shown = {"files": missing[:MISSING_SHOWN], "missing": len(missing), "parts": len(files)}
    return FILES_MISSING(**shown) if missing else None


def _last_file(folder: Path, names: set[str], still_s: float) -> Finding | None:
    """What says that a writer is not done, by the file that it writes last."""
    if STATE in names:
        try:
            step_of_trainer(folder)
        except StateError as error:
            return error.finding
        return None
    if names & TRAINER_FILES or any(name.startswith("rng_state") for name in names):
        return NO_LAST_FILE(file=STATE, writer="transformers' Trainer")
    if names & ACCELERATE_FILES:
        ended = any(name.startswith("random_states_") for name in names)
        file = "random_states_0.pkl"
        return None if ended else NO_LAST_FILE(file=file, writer="accelerate")
    if holds_model(names) and _TRAINER_FOLDER.fullmatch(folder.name) and still_s < SETTLED_S:
        return STATE_MAY_FOLLOW(SETTLED_S)
    return _not_named_yet(folder)


def _not_named_yet(folder: Path) -> Finding | None:
    """Whether Megatron-LM's file beside an iteration's folder names an earlier one. Where there is
    none, the folder was moved, or is the first: then its own files tell of the ranks."""
    own = _ITERATION.fullmatch(folder.name)
    if own is None:
        return None
    tracker = folder.parent / MEGATRON_LATEST
    try:
        named = small_file_text(tracker).decode().strip()
    except (OSError, UnicodeDecodeError, StateError):
        return None
    if not (named.isascii() and named.isdigit()) or int(named[:19]) >= int(own[1]):
        return None
    return SAVE_NOT_ENDED(file=MEGATRON_LATEST, named=int(named), iteration=int(own[1]))


def _has_zip_directory(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return False
