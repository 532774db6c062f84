"""A model folder as transformers' save_pretrained writes it and from_pretrained reads it.

It has model.safetensors, or model-00001-of-00002.safetensors ... with model.safetensors.index.json:
{"metadata": {"total_size"}, "weight_map": {tensor: file}} (huggingface_hub/serialization,
split_torch_state_dict_into_shards). A tied weight is in it once, since the model ties its weights
again when it is loaded. Configuration and tokenizer are copied from the folder `--like`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import checkpoint_options
from flowcheck.findings.catalog import unreadable_checkpoints as unreadable
from flowcheck.findings.catalog.restored_state import NO_MODEL_CONFIG, PARAMETERS_ALONE
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.safetensors_file import (
    PYTORCH_METADATA,
    read_tensors,
    write_tensors,
)
from flowcheck.untrusted_paths import checked_file_name
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.checkpoint_formats.native_format import holds_native_files
from flowcheck.vault.checkpoint_formats.safetensors_format import step_in
from flowcheck.vault.safe_torch_load import safe_torch_load, small_file_text

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
OLD, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")
"""Suffixes of files with weights, or a trainer's state, of another step; they are not copied."""
COPIED_FILE_BYTES_MAX = 256 << 20
"""Most bytes of a copied file, which is read into memory. A choice: a vocabulary may be large."""
STATE = "trainer_state.json"
"""File of transformers' Trainer with its step; it stands beside optimizer.pt and scheduler.pt."""


def write(
    parts: CheckpointContents, folder: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the folder; see `CheckpointFormat.write`. Raises ConfigError if `like` is a folder
    without a config.json."""
    like = options.like if options.like is not None and options.like.is_dir() else None
    if like is not None and not (like / "config.json").is_file():
        raise ConfigError("--like", str(like), checkpoint_options.LIKE_WITHOUT_CONFIG())
    tensors = _in_its_words(parts.untied)
    shards = list(_shards(tensors, options.shard_bytes))
    names = [ONE] if len(shards) == 1 else [_shard(n, len(shards)) for n in range(len(shards))]
    told = {**PYTORCH_METADATA, "step": str(parts.trainer_state.step)}
    for name, shard in zip(names, shards, strict=True):
        write_tensors(folder / name, shard, sums, part="model/", metadata=told)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        at = {one: name for name, shard in zip(names, shards, strict=True) for one in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(at.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        sums.file(INDEX, folder / INDEX)
    for file in _passed(like) if like is not None else ():
        shutil.copyfile(file, folder / file.name)
        sums.file(file.name, folder / file.name)
    configuration = () if like is not None else (NO_MODEL_CONFIG(),)
    return (PARAMETERS_ALONE(), *configuration, *parts.carried_over)


def read(folder: Path) -> dict[str, Any]:
    """{"model"} from all files with weights; from a folder of transformers' Trainer also
    "optimizer", "scheduler" and "step", from one of accelerate the first two."""
    model: dict[str, torch.Tensor] = {}
    files = weight_files(folder)
    for name in files:
        path = folder / name
        part = read_tensors(path) if path.suffix == ".safetensors" else safe_torch_load(path)
        if not isinstance(part, dict):
            raise StateError(unreadable.NO_TENSORS_BY_NAME(path))
        if twice := [one for one in part if one in model]:
            raise StateError(unreadable.TENSOR_IN_TWO_FILES(file=path, tensor=str(twice[0])))
        model.update(part)
    found: dict[str, Any] = {"model": model}
    for part in ("optimizer", "scheduler"):
        for name in (f"{part}.pt", f"{part}.bin"):  # of the Trainer, of accelerate
            if (folder / name).is_file():
                found[part] = safe_torch_load(folder / name)
    step = _step(folder, files)
    return found if step is None else {**found, "step": step}


def recognizes(folder: Path) -> bool:
    """Whether the folder has files with weights, and is not a step in FlowCheck's own format
    without its manifest."""
    weights = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    found = any(any(folder.glob(pattern)) for pattern in weights)
    return found and not holds_native_files(folder)


def _in_its_words(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without the prefixes that DistributedDataParallel and torch.compile put before
    every name."""
    for prefix in ("module.", "_orig_mod."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _shards(
    tensors: dict[str, torch.Tensor], shard_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors in order, in shards of at most `shard_bytes` or of a single tensor."""
    shard: dict[str, torch.Tensor] = {}
    held = 0
    for name, tensor in tensors.items():
        if shard and held + tensor.nbytes > shard_bytes:
            yield shard
            shard, held = {}, 0
        shard[name] = tensor
        held += tensor.nbytes
    yield shard


def _shard(number: int, count: int) -> str:
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _passed(like: Path) -> Iterator[Path]:
    """The files of a model's folder that are not weights: configuration, tokenizer, licence,
    code."""
    for file in sorted(like.iterdir()):
        of_weights = file.name.endswith((*WEIGHTS, ".index.json", ".manifest.json"))
        known = file.name in (STATE, "manifest.json") or file.name.startswith(".")
        if not file.is_file() or of_weights or known:
            continue
        size_bytes = file.stat().st_size
        if size_bytes > COPIED_FILE_BYTES_MAX:
            right = checkpoint_options.LIKE_FILE_TOO_LARGE(
                bytes=size_bytes, limit=COPIED_FILE_BYTES_MAX
            )
            raise ConfigError("--like", str(file), right)
        yield file


def weight_files(folder: Path) -> list[str]:
    """The names of the files with weights. Raises StateError if there are none or an index is
    invalid."""
    for index, one in ((INDEX, ONE), (OLD_INDEX, OLD)):
        if (folder / index).is_file():
            try:
                named = json.loads(small_file_text(folder / index))["weight_map"]
                files = sorted({str(name) for name in named.values()})
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                invalid = unreadable.INVALID_INDEX(index=folder / index, error=error)
                raise StateError(invalid) from error
            if not files:
                raise StateError(unreadable.INDEX_LISTS_NOTHING(folder / index))
            return [checked_file_name(name, str(folder / index)) for name in files]
        if (folder / one).is_file():
            return [one]
    if found := sorted(file.name for file in folder.glob("*.safetensors")):
        return found
    raise StateError(unreadable.NO_WEIGHTS(folder=folder, file=ONE, older=OLD))


def _step(folder: Path, files: list[str]) -> int | None:
    """The step by the Trainer's state or the metadata of the first file; None: neither states
    it."""
    if (folder / STATE).is_file():
        return step_of_trainer(folder)
    path = folder / files[0]
    return step_in(path) if path.suffix == ".safetensors" else None


def step_of_trainer(folder: Path) -> int:
    """The step that the Trainer's state in a folder tells. Raises StateError if it tells none."""
    try:
        return int(json.loads(small_file_text(folder / STATE))["global_step"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        no_step = unreadable.NO_GLOBAL_STEP(file=folder / STATE, error=error)
        raise StateError(no_step) from error
