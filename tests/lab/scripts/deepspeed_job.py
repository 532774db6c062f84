"""A job of DeepSpeed itself, of ZeRO stage 1 or 2.

Arguments: the file of digests, then words: stage1 or stage2; bfloat16, float16 or float32 (the
type of the model); micro (two backward passes a step); clip (by a norm that gradients exceed);
buckets (of at most 12,000 elements); groups (two of the optimizer); foreach (how torch steps);
until:N (all ranks are gone behind that step, and save nothing); save:FOLDER (a checkpoint of step 0
is written there); load:FOLDER (the newest there is gone on from).

What each rank holds of a step is written beside the digests, FILE.STEP.RANK: its part of the
float32 copies, and of each state, as DeepSpeed has them.
"""

import os
import sys
import time

os.environ.setdefault("LOCAL_RANK", "0")

import deepspeed
import torch
import torch.distributed as dist
from account import noise
from deepspeed_model import loss, make, parameter_groups
from torch import nn

STEPS, RATE, MICRO, CLIP = 6, 0.01, 2, 0.02
WORDS = {word.partition(":")[0]: word.partition(":")[2] for word in sys.argv[2:]}


def settings() -> dict[str, object]:
    zero = {"stage": 1 if "stage1" in WORDS else 2}
    zero |= {"reduce_bucket_size": 12_000} if "buckets" in WORDS else {}
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": MICRO if "micro" in WORDS else 1,
        "gradient_clipping": CLIP if "clip" in WORDS else 0.0,
        "zero_optimization": zero,
        "bf16": {"enabled": "bfloat16" in WORDS},
        "fp16": {"enabled": "float16" in WORDS, "loss_scale": 1024.0},
    }


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(3)
    model = make()
    own = [{"params": own} for own in parameter_groups(model, "groups" in WORDS)]
    optimizer = torch.optim.AdamW(own, lr=RATE, foreach="foreach" in WORDS)
    engine, held, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings())
    if "load" in WORDS:
        engine.load_checkpoint(WORDS["load"])
    if "save" in WORDS:
        engine.save_checkpoint(WORDS["save"])
    for step in range(engine.global_steps + 1, STEPS + 1):
        for turn in range(MICRO if "micro" in WORDS else 1):
            noise(step, dist.get_rank(), turn)
            engine.backward(loss(engine, "cpu"))
            engine.step()
        told(step, engine.module, held)
        if str(step) == WORDS.get("until"):
            time.sleep(1)  # what its last gathers sent is on its way
            os._exit(0)
    dist.barrier()
    dist.destroy_process_group()


def told(step: int, model: nn.Module, held: object) -> None:
    rank, parts = dist.get_rank(), held.single_partition_of_fp32_groups
    names = {id(p): name for name, p in model.named_parameters()}
    tree = {
        "model": {name: p.detach().clone() for name, p in model.named_parameters()},
        "groups": [[names[id(p)] for p in own] for own in held.bit16_groups],
        "masters": [part.detach().clone() for part in parts],
        "states": [dict(held.optimizer.state[part]) for part in parts],
    }
    torch.save(tree, f"{sys.argv[1]}.{step}.{rank}")


if __name__ == "__main__":
    main()
