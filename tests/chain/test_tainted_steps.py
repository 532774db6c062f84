"""A capture that lost frames, through the whole chain: every element whose bytes came is torch's
own, and no step that lacks some is given as an exact one."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import preloaded
from support.cut import gradient_of
from support.netib import Options, Truth, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from support.refused_as import refused_as

import flowcheck
from flowcheck.findings.catalog.lost_steps import STEP_TAINTED as TOLD
from flowcheck.findings.catalog.refused_restores import STEP_TAINTED
from flowcheck.findings.catalog.restored_state import TAINTED_ELEMENTS
from flowcheck.replica.checkpoint_files.manifest import load_manifest

SHAPES = ((300, 311), (311,), (90, 311), (91,))
LEARNING_RATE = 1e-3
LOST_AT = 0.6
"""Of the capture: within step 5."""


def job(protocol: str) -> Options:
    return Options(
        seed=5, ranks=3, shapes=SHAPES, protocol=protocol, version=(2, 26), channels=2, steps=8,
        caps_bytes=(40000, 90000),
    )  # fmt: skip


def trained(truth: Truth, steps: int) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """What torch makes of the truth."""
    cuts = np.cumsum([prod(shape) for shape in SHAPES])[:-1]

    def split(raw: bytes) -> list[torch.Tensor]:
        flat = np.frombuffer(raw, "<f4")
        parts = zip(np.split(flat, cuts), SHAPES, strict=True)
        return [torch.from_numpy(part.copy()).reshape(shape) for part, shape in parts]

    own = [torch.nn.Parameter(value) for value in split(truth.weights)]
    optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE)
    for step in range(steps):
        for parameter, gradient in zip(own, split(gradient_of(truth, step)), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return own, optimizer


def replayed(capture: Path, folder: Path) -> tuple[int, dict[str, Any]]:
    words = ["replay", capture, "--optimizer", "adamw"]
    words += ["--lr", str(LEARNING_RATE), "--out", folder / "out", "--json"]
    done = preloaded.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("protocol", ["LL128", "Simple"])
def test_lost_frames_cost_their_elements_alone(protocol: str, tmp_path: Path) -> None:
    made = generate(job(protocol), tmp_path)
    capture = made.files[0].read_bytes()
    records = records_of(capture)
    first = int(LOST_AT * len(records))
    gone = {first, first + 40}
    kept = (record for number, record in enumerate(records) if number not in gone)
    made.files[0].write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(kept))
    code, told = replayed(made.files[0], tmp_path)
    assert code != 0 and (told["steps"], told["lost"]) == (8, None)
    assert told["taint"]["code"] == TAINTED_ELEMENTS.code
    notes = [note["arguments"].get("what", {}) for note in told["notes"]]
    since = {note["arguments"]["step"] for note in notes if note.get("code") == TOLD.code}
    out = tmp_path / "out"
    tainted = load_manifest(out / "step-8").tainted
    assert {one.since for own in tainted.values() for one in own} == since and since
    with refused_as(STEP_TAINTED):
        flowcheck.load(out / "step-8")
    same_outside(flowcheck.load(out / "step-8", allow_tainted=True), tainted, made.truth)
    exact = flowcheck.load(out)
    assert exact["step"] == min(since) - 1
    same_outside(exact, {}, made.truth)


def same_outside(loaded: dict[str, Any], tainted: dict[str, Any], truth: Truth) -> None:
    """All but what is tainted is torch's, bit for bit; what is tainted are few elements."""
    parameters, optimizer = trained(truth, loaded["step"])
    for number, (name, value) in enumerate(loaded["model"].items()):
        apart = np.ones(value.numel(), np.bool_)
        for one in tainted.get(name, ()):
            apart[one.start : one.stop] = False
        assert np.count_nonzero(~apart) < 0.05 * len(apart) + 1
        pairs = [(value, parameters[number].detach())]
        pairs += [
            (state, optimizer.state[parameters[number]][kind])
            for kind, state in loaded["optimizer"]["state"][number].items()
            if kind != "step"
        ]
        for own, right in pairs:
            alike = own.reshape(-1).view(torch.int32) == right.reshape(-1).view(torch.int32)
            assert alike.numpy()[apart].all(), name
