"""Detects the checkpoint format of a file or folder."""

from __future__ import annotations

from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.replica.checkpoint.checkpoint_load import MODEL, OPTIMIZER
from flowcheck.replica.checkpoint_files.latest_pointer import (
    latest_checkpoint,
    why_latest_is_missing,
)
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, load_manifest, path_of
from flowcheck.untrusted_paths import refuse_special_file

ZIP_MAGIC = b"PK\x03\x04"
NATIVE = (MODEL, OPTIMIZER)
"""Of a step as it is kept; no other program writes these two beside each other."""
DCP_METADATA = ".metadata"
"""torch/distributed/checkpoint/filesystem.py, _METADATA_FN."""
MEGATRON_LATEST = "latest_checkpointed_iteration.txt"
"""megatron/training/checkpointing.py, get_checkpoint_tracker_filename."""


def detect_format(path: Path) -> str:
    """The name of its format. Raises StateError where nothing tells."""
    refuse_special_file(path)
    if path_of(path).is_file():
        return load_manifest(path).form
    if path.is_dir():
        return _of_folder(path)
    try:
        with path.open("rb") as file:
            begin = file.read(9)
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error
    if (begin[:4] != ZIP_MAGIC and begin[8:9] == b"{") or path.suffix == ".safetensors":
        return "safetensors"
    return "torch"


def newest_output(path: Path) -> Path:
    """The newest checkpoint of a folder whose `latest` names one, else `path`. Raises StateError
    where that one is not there."""
    if path.is_dir() and not path_of(path).is_file():
        newest = latest_checkpoint(path)
        if newest is None and (gone := why_latest_is_missing(path)):
            raise StateError(gone)
        return newest or path
    return path


def _of_folder(path: Path) -> str:
    def has(pattern: str) -> bool:
        return next(iter(path.glob(pattern)), None) is not None

    if (path / DCP_METADATA).is_file():
        return "dcp"
    if has("*_model_states.pt") or has("*/*_model_states.pt"):
        return "deepspeed"
    if (path / MEGATRON_LATEST).is_file() or has("mp_rank_*/model_optim_rng.pt"):
        return "megatron"
    if all((path / name).is_file() for name in NATIVE):
        raise StateError(f"{path}: holds no {MANIFEST}: a step of ours that is not whole")
    if has("*.safetensors") or has("*.safetensors.index.json") or has("pytorch_model*.bin"):
        return "huggingface"
    raise StateError(
        f"{path}: holds no checkpoint of a known format (torch.distributed.checkpoint's .metadata, "
        "safetensors or an index of them, DeepSpeed's or Megatron's shards, a manifest of ours)"
    )
