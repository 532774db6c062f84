"""Checkpoint folders as the libraries write them: file after file, in their order.

Each writer yields after each file, so that a test may look, or stop as a killed trainer does.
transformers: Trainer._save_checkpoint and PreTrainedModel.save_pretrained; Megatron-LM:
training/checkpointing.py, save_checkpoint; DeepSpeed: DeepSpeedEngine.save_checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Model = Mapping[str, torch.Tensor]


def pretrained(folder: Path, model: Model, shards: int = 1) -> Iterator[str]:
    """save_pretrained: the configuration, the parts of the model, their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["Net"]}))
    yield "config.json"
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    held = {name: names[n * shards // len(model)] for n, name in enumerate(model)}
    for file in names:
        part = {name: own.contiguous() for name, own in model.items() if held[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
        yield file
    if shards > 1:
        size = sum(own.nbytes for own in model.values())
        index = {"metadata": {"total_size": size}, "weight_map": held}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        yield "model.safetensors.index.json"


def trainer_folder(
    folder: Path, model: Model, optimizer: Any, step: int, shards: int = 1
) -> Iterator[str]:
    """Trainer._save_checkpoint; optimizer: None of `save_only_model`."""
    yield from pretrained(folder, model, shards)
    torch.save({"learning_rate": 1e-3}, folder / "training_args.bin")
    yield "training_args.bin"
    if optimizer is not None:
        torch.save(optimizer, folder / "optimizer.pt")
        yield "optimizer.pt"
        torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
        yield "rng_state.pth"
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    yield "trainer_state.json"


def accelerate_folder(folder: Path, model: Model, optimizer: Any) -> Iterator[str]:
    """Accelerator.save_state."""
    folder.mkdir(parents=True)
    save_file(dict(model), folder / "model.safetensors", metadata={"format": "pt"})
    yield "model.safetensors"
    torch.save(optimizer, folder / "optimizer.bin")
    yield "optimizer.bin"
    (folder / "random_states_0.pkl").write_bytes(b"\x80\x04}.")
    yield "random_states_0.pkl"


def megatron_folder(
    root: Path, model: Model, optimizer: Any, step: int, ranks: int = 1
) -> Iterator[str]:
    """One iteration of `ranks` tensor-parallel ranks, and then the file that names it."""
    args = argparse.Namespace(tensor_model_parallel_size=ranks, pipeline_model_parallel_size=1)
    for rank in range(ranks):
        place = root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
        place.parent.mkdir(parents=True)
        tree = {"args": args, "checkpoint_version": 3.0, "iteration": step, "model": dict(model)}
        torch.save({**tree, "optimizer": optimizer}, place)
        yield f"mp_rank_{rank:02d}"
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    yield "latest_checkpointed_iteration.txt"


def deepspeed_folder(
    root: Path, model: Model, state: Mapping[str, Model], step: int, ranks: int
) -> Iterator[str]:
    """ZeRO stage 2 of `ranks` data-parallel ranks. state: {parameter: {kind: tensor}}."""
    place = root / f"global_step{step}"
    place.mkdir(parents=True)
    module = {
        "module": OrderedDict(model),
        "optimizer": None,
        "param_shapes": [OrderedDict((name, own.shape) for name, own in model.items())],
        "global_steps": step,
        "dp_world_size": ranks,
        "mp_world_size": 1,
    }
    torch.save(module, place / "mp_rank_00_model_states.pt")
    yield "mp_rank_00_model_states.pt"
    for rank in range(ranks):
        kinds = {
            kind: _part([own[kind] for own in state.values()], ranks, rank)
            for kind in ("exp_avg", "exp_avg_sq")
        }
        part = {
            "base_optimizer_state": {
                "state": {0: {"step": torch.tensor(float(step)), **kinds}},
                "param_groups": [{"lr": 1e-3, "params": [0]}],
            },
            "single_partition_of_fp32_groups": [_part(list(model.values()), ranks, rank)],
            "zero_stage": 2,
            "partition_count": [ranks],
        }
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": part}, place / name)
        yield name
    (root / "latest").write_text(place.name)
    yield "latest"


def _part(tensors: list[torch.Tensor], ranks: int, rank: int) -> torch.Tensor:
    flat = torch.cat([own.reshape(-1) for own in tensors])
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % (2 * ranks))])
    return padded.chunk(ranks)[rank].clone()
