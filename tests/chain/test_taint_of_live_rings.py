"""Two rings of one training job behind a chain, each of which lost frames: what is told of the
model is what differs from torch's training, until a file heals the one and a hook the other."""

from __future__ import annotations

import json
import struct
import time
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chain import Command, flowcheck, wait_until
from support.cut import gradient_of
from support.free import free_port
from support.netib import Options, Truth, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from test_healed_by_hook import hooked_trainer
from test_tainted_steps import LEARNING_RATE

import flowcheck as package
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.replica.model_taint import ModelTaint
from flowcheck.stages.run_directory.run_dir import RunDir

SHAPES = ((120, 211), (211,)), ((90, 131), (131,), (57,))
STEPS = 6
LIMIT_S = 180.0
"""Two jobs are learned side by side first, which a busy machine takes long for."""
LOST_AT = 0.55, 0.75
"""Of each ring's frames."""
LOST = (12, 13), (6, 7)
"""[ring] (frames that no mirror brought, one of so many): some carry sums, others what goes into
sums, whose loss costs nothing."""


def made_capture(folder: Path) -> tuple[Path, list[Truth]]:
    """Both rings' frames by time, between the same hosts; some frames of each are lost."""
    kept: list[bytes] = []
    truths = []
    each = zip(SHAPES, LOST_AT, LOST, strict=True)
    for number, (shapes, lost_at, (lost, apart)) in enumerate(each, 1):
        own = folder / f"ring-{number}"
        own.mkdir()
        options = Options(
            seed=number, shapes=shapes, protocol="LL128", version=(2, 26), steps=STEPS,
            caps_bytes=(40000, 90000), random_qpns=True,
        )  # fmt: skip
        made = generate(options, own)
        raw = made.files[0].read_bytes()
        records = records_of(raw)
        first = int(lost_at * len(records))
        gone = range(first, first + lost * apart, apart)
        kept += [one for n, one in enumerate(records) if n not in gone]
        truths.append(made.truth)
    kept.sort(key=lambda record: struct.unpack("<II", record[:8]))
    file = folder / "both.pcap"
    file.write_bytes(raw[:FILE_HEADER_BYTES] + b"".join(kept))
    return file, truths


def trained(truth: Truth) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """All steps by torch, of all gradients."""
    shapes = truth.options.shapes
    cuts = np.cumsum([prod(shape) for shape in shapes])[:-1]

    def split(raw: bytes) -> list[torch.Tensor]:
        parts = np.split(np.frombuffer(raw, "<f4"), cuts)
        return [torch.from_numpy(p.copy()).reshape(s) for p, s in zip(parts, shapes, strict=True)]

    own = [torch.nn.Parameter(value) for value in split(truth.weights)]
    optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE)
    for step in range(STEPS):
        for p, gradient in zip(own, split(gradient_of(truth, step)), strict=True):
            p.grad = gradient
        optimizer.step()
    return own, optimizer


def model_of(where: RunDir) -> ModelTaint:
    [model] = StateReader(where.root, cached_s=0).state().models
    return model


def differing(where: RunDir, truth: Truth) -> dict[str, set[int]]:
    """{parameter: elements of the newest step that are not torch's}, without those that agree."""
    loaded = package.load(where.root, allow_tainted=True)
    assert loaded["step"] == STEPS
    pairs = zip(loaded["model"].items(), trained(truth)[0], strict=True)
    masks = {
        name: value.view(torch.int32) != right.detach().view(torch.int32)
        for (name, value), right in pairs
    }
    return {
        n: set(mask.reshape(-1).nonzero()[:, 0].tolist()) for n, mask in masks.items() if mask.any()
    }


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_the_model_is_told_as_one_until_a_file_and_a_hook_heal_its_rings(tmp_path: Path) -> None:
    capture, truths = made_capture(tmp_path)
    port, where, runs = free_port(), RunDir(tmp_path / "run"), tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "token").write_bytes(b"no trainer has this one")
    (tmp_path / "job.toml").write_text(
        f'jobs = 2\n[[source]]\nfile = "{capture}"\n[replica]\nkeep_bytes = 16777216\n'
        f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'
        f'[audit]\nfolder = "{runs}"\ninterval_s = 0.1\n'
        f'[hook]\naddress = "127.0.0.1:{port}"\ntoken_file = "{tmp_path}/token"\npause_s = 0.2\n'
    )
    rings = [where, where.job_run_dir(2)]
    ended = f'"step":{STEPS}'.encode()
    try:
        with Command("up", tmp_path / "job.toml", "--run", where.root):
            wait_until(
                lambda: all(r.steps.exists() and ended in r.steps.read_bytes() for r in rings),
                LIMIT_S, "all steps of both",
            )  # fmt: skip
            of = sorted(truths, key=lambda t: t.weights != rings[0].weights.read_bytes())
            judged(where, of)
            assert tainted_jobs(where) == {"job-1", "job-2"}
            code, out, err = flowcheck("status", "--run", where.root, "--json")
            assert code == 0 and len(json.loads(out)["models"]) == 1, err
            parameters, rule = trained(of[0])
            tree = {"net": {f"layer{n}": p.detach() for n, p in enumerate(parameters)}}
            torch.save(tree | {"opt": rule.state_dict(), "global_step": STEPS}, runs / "step-6.pt")
            of_second = {"job-2"}
            wait_until(lambda: tainted_jobs(where) == of_second, LIMIT_S, "the file's healing")
            judged(where, of)
            with hooked_trainer(tmp_path, of[1], port):
                wait_until(lambda: not tainted_jobs(where), LIMIT_S, "the hook's")
            judged(where, of)
            model = model_of(where)
            assert (model.exact_step, model.told) == (STEPS, None)
    finally:
        deadline_s = time.monotonic() + 60
        while any(ring.stage_pids() for ring in rings) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        where.remove()


def tainted_jobs(where: RunDir) -> set[str]:
    return {one.job for one in model_of(where).tensors}


def judged(where: RunDir, truths: list[Truth]) -> None:
    """What is told of the model is what differs from torch."""
    model = model_of(where)
    wrong = {
        f"job-{number}": own
        for number, truth in enumerate(truths, 1)
        if (own := differing(where.job_run_dir(number), truth))
    }
    told: dict[str, dict[str, set[int]]] = {}
    for one in model.tensors:
        at = {n for of in one.ranges for n in range(of.start, of.stop)}
        assert len(at) == one.tainted_elements and not one.ranges_left_out
        told.setdefault(one.job, {})[one.parameter] = at
    assert told == wrong
    assert model.tainted_elements == sum(len(at) for own in wrong.values() for at in own.values())
    assert model.all_elements == sum(prod(s) for shapes in SHAPES for s in shapes)
