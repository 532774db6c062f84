"""One checkpoint compared with the replicas of all shards. Judged by torch's own optimizer over the
whole model, each parameter cut along its rows; its rule steps each element by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lives import Both
from support.refused_as import refused_as
from support.staged import Chain

from flowcheck.config import encode_config
from flowcheck.findings.catalog.base_checkpoints import NO_REPLICA, NO_REPLICA_YET
from flowcheck.findings.catalog.hybrid_jobs import CARRIES_SHARD
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.operator_statements import ShardCut

SHARDS = 2
Play = Callable[[list[int]], list[RunDir]]


def weights(shard: int) -> np.ndarray:
    size = sum(int(np.prod(shape)) for shape in JOB.shapes)
    return np.random.default_rng(shard).standard_normal(size, np.float32)


def life(of_weights: int, of_gradients: int) -> Life:
    return Life(replace(JOB, seed=11 + of_gradients), weights(of_weights), number=0)


def parts(flat: np.ndarray) -> list[torch.Tensor]:
    """[parameter] of a shard."""
    ends = np.cumsum([int(np.prod(shape)) for shape in JOB.shapes])
    cut = np.split(flat, ends[:-1])
    return [torch.from_numpy(p.copy()).reshape(s) for p, s in zip(cut, JOB.shapes, strict=True)]


def trained(file: Path) -> Path:
    """The trainers' checkpoint of the whole model, behind all steps."""
    of_shards = [parts(weights(shard)) for shard in range(SHARDS)]
    whole = [torch.nn.Parameter(torch.cat(own)) for own in zip(*of_shards, strict=True)]
    optimizer = torch.optim.AdamW(whole, lr=1e-3)
    each = [life(shard, shard).generate().gradients for shard in range(SHARDS)]
    for gradients in zip(*each, strict=True):
        of_step = [parts(floats(gradient)) for gradient in gradients]
        for p, own in zip(whole, zip(*of_step, strict=True), strict=True):
            p.grad = torch.cat(own)
        optimizer.step()
    model = {f"layer.{n}": p.detach() for n, p in enumerate(whole)}
    tree = {"model": model, "optimizer": optimizer.state_dict(), "step": JOB.steps}
    torch.save(tree, file)
    return file


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Play]:
    opened: list[Both] = []

    def make(carried: list[int]) -> list[RunDir]:
        """carried: [shard] whose gradients its address carries."""
        for shard, other in enumerate(carried):
            place = tmp_path / f"shard-{shard}"
            place.mkdir()
            own = life(shard, other)
            own.generate()
            write_pcap(place / "job.pcap", own.frames_of())
            both = Both(Chain(place, shm / f"memory-{shard}", [place / "job.pcap"], 256))
            opened.append(both)
            cuts = tuple(
                ShardCut(whole=(SHARDS * s[0], *s[1:]), dim=0, start=shard * s[0], size=s[0])
                for s in JOB.shapes
            )
            model = msgspec.structs.replace(both.config.model, cuts=cuts)
            config = msgspec.structs.replace(both.config, model=model)
            both.chain.run.config.write_bytes(encode_config(config))
            both.drive()
        return [both.chain.run for both in opened]

    yield make
    for both in opened:
        both.close()


def told(runs: list[RunDir], file: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    audit_command.audit_shards(runs, file, None, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_shards_in_their_order_pass(
    play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(play([0, 1]), trained(tmp_path / "whole.pt"), capsys)
    assert found["passed"] and [one["passed"] for one in found["shards"]] == [True, True]


def test_addresses_in_another_order_are_told_by_their_shards(
    play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(play([1, 0]), trained(tmp_path / "whole.pt"), capsys)
    assert not found["passed"]
    said = [one["evidence"][0] for one in found["shards"]]
    assert [one["code"] for one in said] == [CARRIES_SHARD.code] * SHARDS
    assert [one["arguments"] for one in said] == [
        {"shard": 0, "other": 1},
        {"shard": 1, "other": 0},
    ]


def test_nothing_is_written_down_where_a_later_shard_cannot_be_compared(
    play: Play, tmp_path: Path
) -> None:
    runs, file = play([0, 1]), trained(tmp_path / "whole.pt")
    for path in (runs[1].trace, runs[1].replica):
        path.unlink()
    with refused_as(NO_REPLICA, NO_REPLICA_YET):
        audit_command.audit_shards(runs, file, None, as_json=True)
    assert not any(run.audits.exists() for run in runs)
