"""Trains a small GPT on bytes of a text file with DistributedDataParallel.

    torchrun --nproc-per-node 2 gpt.py --steps 100 --out runs/a
    torchrun --nproc-per-node 2 gpt.py --steps 100 --out runs/a --resume runs/a/step-40.pt

What is drawn at a step (batches, dropout) depends on seed, step and rank only, so a run that is
resumed goes on exactly as one that was never stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt_model import GPT, Shape
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def schedule(warmup: int, steps: int, floor: float) -> Callable[[int], float]:
    """The factor of the learning rate as a function of the step: linear warm-up, then a cosine
    down to `floor`."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line; None: of this process. Ends the process with a usage message for an
    invalid one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", help="of torch.distributed; default: torch's choice")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stop-at", type=int, help="save and end after this step")
    parser.add_argument("--batch", type=int, default=2, help="sequences per micro-batch")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--context", type=int, default=Shape.context)
    parser.add_argument("--dropout", type=float, default=Shape.dropout)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--sgd", action="store_true", help="SGD with momentum 0.9, not AdamW")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--floor", type=float, default=0.1)
    parser.add_argument("--clip", type=float, help="largest norm of the whole gradient")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--sync-each", action="store_true", help="accumulate without no_sync")
    parser.add_argument("--metric-every", type=int, default=0, help="average the loss over ranks")
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--saves", type=Path, help="folder of what --save-every saves, not --out")
    parser.add_argument("--save-with", choices=("torch", "dcp"), default="torch")
    parser.add_argument("--bucket-mb", type=float, help="of DistributedDataParallel")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--resume", type=Path, help="a checkpoint of this script")
    parser.add_argument("--digests", type=Path, help="write sha256 of the state after each step")
    if (told := parser.parse_args(given)).width % told.heads:
        parser.error(f"--width {told.width} is no multiple of --heads {told.heads}")
    return told


def training_text(out: Path) -> torch.Tensor:
    """Tokens to train on, uint8 [2**20]; generated once into `out` and equal for all ranks."""
    words = [f"{a}{b}{c}" for a in "btkmn" for b in "aeiou" for c in "rslpd"]
    choice = torch.Generator().manual_seed(7)
    picked = torch.randint(len(words), (2**18,), generator=choice).tolist()
    text = " ".join(words[i] for i in picked).encode()[: 2**20]
    path = out / "text.txt"
    if not path.exists():
        staging = path.with_suffix(f".{os.getpid()}")
        staging.write_bytes(text)
        staging.replace(path)
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def draw(text: torch.Tensor, args: argparse.Namespace, *place: int) -> torch.Tensor:
    """Token windows [batch, context + 1], drawn from seed and `place` (step, rank, micro-batch)
    only."""
    seed = int.from_bytes(hashlib.sha256(repr((args.seed, *place)).encode()).digest()[:7], "big")
    torch.manual_seed(seed)
    starts = torch.randint(len(text) - args.context - 1, (args.batch,))
    return torch.stack([text[s : s + args.context + 1] for s in starts.tolist()]).long()


def loss_of(model: torch.nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the model's prediction of each next token. window: tokens [batch, context +
    1]."""
    logits = model(window[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


class Trainer:
    """Model, optimizer, schedule, and the current step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.step = args, 0
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        shape = Shape(args.layers, args.width, args.heads, args.context, args.dropout)
        self.model = GPT(shape)
        if args.sgd:
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=args.weight_decay
            )
        else:
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=args.lr, weight_decay=args.weight_decay
            )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, schedule(args.warmup, args.steps, args.floor)
        )
        if args.resume:
            self._load(args.resume)
        buckets = {} if args.bucket_mb is None else {"bucket_cap_mb": args.bucket_mb}
        self.wrapped = DistributedDataParallel(self.model, **buckets)
        self.text = training_text(args.out)
        self.saving: Any = None
        self.gloo: dist.ProcessGroup | None = None

    def train_step(self) -> float:
        """Trains one step; returns the mean loss of this rank's micro-batches."""
        args, total = self.args, 0.0
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            quiet = (
                self.wrapped.no_sync() if not (last or args.sync_each) else contextlib.nullcontext()
            )
            with quiet:
                window = draw(self.text, args, self.step, self.rank, micro)
                loss = loss_of(self.wrapped, window) / args.accumulate
                loss.backward()
            total += loss.item()
        if args.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1
        return total

    def evaluate(self) -> float:
        """Mean loss over ranks on windows that no step trains on."""
        self.model.eval()
        with torch.no_grad():
            loss = loss_of(self.model, draw(self.text, self.args, -1 - self.step, self.rank))
        self.model.train()
        return self.mean_over_ranks(loss.item())

    def mean_over_ranks(self, value: float) -> float:
        """Mean of a number over all ranks, by an all-reduce."""
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.ranks

    def state(self) -> dict[str, object]:
        """The checkpoint: model, optimizer, scheduler, step."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "arguments": {k: v for k, v in vars(self.args).items() if not isinstance(v, Path)},
        }

    def save(self, folder: Path | None = None) -> None:
        """Writes a checkpoint atomically: rank 0 with torch.save, or all ranks in the background
        with DCP. folder: default --out."""
        path = (folder or self.args.out) / f"step-{self.step}.pt"
        if self.args.save_with == "dcp":
            self._save_in_background(path.with_suffix(""))
        elif self.rank == 0:
            torch.save(self.state(), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)

    def _save_in_background(self, path: Path) -> None:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        if self.saving is not None:
            self.saving.result()
        self.gloo = self.gloo or dist.new_group(backend="gloo")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.saving = async_save(state, checkpoint_id=str(path), process_group=self.gloo)

    def _load(self, path: Path) -> None:
        kept = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.scheduler.load_state_dict(kept["scheduler"])
        self.step = kept["step"]

    def digest(self) -> dict[str, object]:
        """sha256 of all parameters and of each optimizer state, flat in registration order."""
        parameters = list(self.model.parameters())
        kinds = sorted({kind for p in parameters for kind in self.optimizer.state[p]})
        return {
            "step": self.step,
            "parameters": _sha256(parameters),
            "states": {k: _sha256([self.optimizer.state[p][k] for p in parameters]) for k in kinds},
        }


def _sha256(tensors: list[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
        whole.update(raw.numpy().data)
    return whole.hexdigest()


def main() -> None:
    """Trains as the command line says."""
    args = arguments()
    dist.init_process_group(args.backend) if args.backend else dist.init_process_group()
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args)
    say = trainer.rank == 0
    if say and not args.resume:
        size = sum(p.numel() for p in trainer.model.parameters())
        print(f"{size:,} parameters, {trainer.ranks} ranks", flush=True)
        trainer.save() if args.save_with == "torch" else None
    while trainer.step < (args.stop_at or args.steps):
        began = time.perf_counter()
        loss = trainer.train_step()
        if args.metric_every and trainer.step % args.metric_every == 0:
            loss = trainer.mean_over_ranks(loss)
        line: dict[str, object] = {"step": trainer.step, "loss": round(loss, 4)}
        if args.eval_every and trainer.step % args.eval_every == 0:
            line["eval_loss"] = round(trainer.evaluate(), 4)
        if args.save_every and trainer.step % args.save_every == 0:
            trainer.save(args.saves)
        line["seconds"] = round(time.perf_counter() - began, 4)
        if say:
            print(json.dumps(line), flush=True)
        if say and args.digests:
            with args.digests.open("a") as file:
                file.write(json.dumps(trainer.digest()) + "\n")
    if args.save_with == "torch":
        trainer.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
