"""One rank of DeepSpeed on CPUs: loads a folder by its own loader and takes a step with it."""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch
from support.steps import made


def main(folder: Path, stage: int, out: Path) -> None:
    net, optimizer = made(seed=9)
    deepspeed.init_distributed("gloo")
    ranks = torch.distributed.get_world_size()
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=optimizer,
        config={
            "train_batch_size": ranks,
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    loaded, _ = engine.load_checkpoint(str(folder))
    assert loaded, folder
    at = {name: value.detach().clone() for name, value in net.named_parameters()}
    torch.manual_seed(77)
    engine.backward(engine(torch.randn(8, 6)).square().mean())
    engine.step()
    after = {name: value.detach().clone() for name, value in net.named_parameters()}
    torch.save({"loaded": at, "after": after}, out / f"{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
