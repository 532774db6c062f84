"""All shards of a model (hybrid sharding): jobs by their addresses, one checkpoint as torch reads
it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.refused_as import refused_as
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from flowcheck.config import JobConfig, OptimizerConfig, decode_config, encode_config, job_from
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.hybrid_jobs import (
    ADDRESS_NOT_SEEN,
    ALL_SHARDS,
    SHARDS_AS_DCP,
    SHARDS_DIFFER,
    SHARDS_LACK_ELEMENTS,
    SHARDS_OF_LIVES,
)
from flowcheck.findings.catalog.refused_settings import (
    ADDRESS_EACH,
    ADDRESSES_FOR_JOBS,
    NOT_OF_ALL_SHARDS,
    OF_STYLES,
    SHARDS_ARE_JOBS,
)
from flowcheck.findings.finding import Entry
from flowcheck.ops.job_setup.multi_job_setup import job_settings
from flowcheck.ops.restore import shards_restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.shards_restore import check_form
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.plane.extraction.flow_plan_install import PLAN_IGNORE, PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.extraction.flows_elsewhere import FlowsElsewhere
from flowcheck.stages.job_state.lifecycle_record_schema import Incarnation
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write_shards
from flowcheck.vault.checkpoint_formats.dcp_shards import ModelShard
from flowcheck.vault.checkpoint_formats.format_registry import NO_OPTIONS
from flowcheck.vault.overwrite_guard import OutputTarget
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.operator_statements import ShardCut

ADDRESSES = ["10.0.0.1", "fd00::1"]
STEP = 5
ADAMW = OptimizerConfig(name="adamw", learning_rate=0.01)


def stated(top: dict[str, Any] | None = None, **sharded: Any) -> JobConfig:
    own = {"style": "hsdp", "factory": "net.py:make", "mesh": [2, 2], "addresses": ADDRESSES}
    tree = {
        "source": [{"interface": "eth1"}],
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "sharded": {**own, **sharded},
    }
    return job_from({**tree, **(top or {})})


def test_each_shard_is_a_job_of_its_address_and_all_are_saved_together() -> None:
    config = stated(addresses=["10.0.0.1", "FD00:0::1"])
    own = [job_settings(config, number) for number in (1, 2)]
    assert [each.hosts for each in own] == [("10.0.0.1",), ("fd00::1",)]
    assert [each.sharded.one_of_shards for each in own if each.sharded] == [(0, 2), (1, 2)]
    assert all(each.together and each.several for each in own)
    assert [decode_config(encode_config(each)) for each in own] == own


def test_clipping_is_over_all_shards() -> None:
    clipped = {"optimizer": {"name": "adamw", "learning_rate": 0.01, "clip_norm": 1.0}}
    config = stated(clipped)
    assert config.optimizer is not None and config.optimizer.clip_together
    assert job_settings(config, 2).optimizer == config.optimizer


@pytest.mark.parametrize(
    ("entry", "top", "sharded"),
    [
        (ADDRESS_EACH, {}, {"addresses": ["10.0.0.1"]}),
        (ADDRESS_EACH, {}, {"addresses": ["10.0.0.1", "10.0.0.1"]}),
        (ADDRESS_EACH, {}, {"mesh": [4, 1], "addresses": ["10.0.0.1"]}),
        (SHARDS_ARE_JOBS, {}, {"shard": 1}),
        (SHARDS_ARE_JOBS, {"jobs": 2}, {}),
        (SHARDS_ARE_JOBS, {"job": [{"hosts": ["10.0.0.1"]}]}, {}),
        (SHARDS_ARE_JOBS, {"together": False}, {}),
        (NOT_OF_ALL_SHARDS, {"audit": {"folder": "runs"}}, {}),
        (OF_STYLES, {}, {"style": "fsdp", "mesh": None, "ranks": 2}),
        (ADDRESSES_FOR_JOBS, {"jobs": 2}, {"addresses": [], "shard": 0}),
    ],
)
def test_what_tells_shards_apart_wrongly_is_refused(
    entry: Entry, top: dict[str, Any], sharded: dict[str, Any]
) -> None:
    given = {key: value for key, value in sharded.items() if value is not None}
    with refused_as(entry, kind=ConfigError):
        if sharded.get("mesh", 1) is None:
            job_from(
                {
                    "source": [{"interface": "eth1"}],
                    "sharded": {"factory": "net.py:make", "addresses": ADDRESSES, **given},
                }
            )
        stated(top, **given)


class Net(nn.Module):
    """Sizes that three do not divide; less rows than shards; one that is cut along its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 7)
        self.wide = nn.Parameter(torch.randn(2, 7, 6))
        self.outer = nn.Linear(7, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(data).relu() + (self.wide @ data.T).sum(0).T)


@dataclass(frozen=True)
class Trained:
    net: Net
    optimizer: torch.optim.AdamW


@pytest.fixture(scope="module")
def whole() -> Trained:
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False)
    for _ in range(STEP):
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    return Trained(net, optimizer)


def cuts_of(name: str, whole: torch.Tensor, shards: int) -> list[ShardCut]:
    """As torch deals rows out, or the columns of `wide`."""
    dim = 2 if name == "wide" else 0
    parts = list(whole.chunk(shards, dim))
    parts += [whole.narrow(dim, 0, 0)] * (shards - len(parts))
    start, found = 0, []
    for part in parts:
        size = part.shape[dim]
        at = start if size else 0
        found.append(ShardCut(whole=tuple(whole.shape), dim=dim, start=at, size=size))
        start += size
    return found


def shards_of(trained: Trained, shards: int) -> list[ModelShard]:
    """[shard] what a perfect replica of it has."""
    named = dict(trained.net.named_parameters())
    cuts = {name: cuts_of(name, p, shards) for name, p in named.items()}
    found = []
    for shard in range(shards):
        own = {name: each[shard] for name, each in cuts.items()}

        def part(name: str, value: Any, own: dict[str, ShardCut] = own) -> Any:
            cut = own[name]
            if not value.shape:
                return value.clone()
            return value.detach().narrow(cut.dim, cut.start, cut.size).clone()

        values = {name: part(name, p) for name, p in named.items()}
        states = tuple(
            {kind: part(name, value) for kind, value in trained.optimizer.state[p].items()}
            for name, p in named.items()
        )
        layout = Layout.of(
            [(tuple(v.shape), v.stride()) for v in values.values()], names=list(values)
        )
        taken = Snapshot(STEP, "", layout, ADAMW, values, states)
        found.append(ModelShard(contents_of(trainer_state(taken), layout), own))
    return found


def written(folder: Path, shards: Sequence[ModelShard]) -> None:
    target = OutputTarget(path=folder, folder=True)
    write_shards(shards, target, NO_OPTIONS, (ALL_SHARDS(ADDRESSES),))


def equal(one: Any, two: Any) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_torch_reads_the_whole_model_from_the_shards(
    whole: Trained, tmp_path: Path, shards: int
) -> None:
    folder = tmp_path / "whole"
    written(folder, shards_of(whole, shards))
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    by_torch = torch.load(tmp_path / "whole.pt", weights_only=False)
    for tree in (by_torch, read(folder)):
        assert tree["step"] == STEP
        named = dict(whole.net.named_parameters())
        assert set(tree["model"]) == set(named) == set(tree["optimizer"]["state"])
        for name, parameter in named.items():
            assert equal(tree["model"][name], parameter.detach())
            own = whole.optimizer.state[parameter]
            found = tree["optimizer"]["state"][name]
            assert set(found) == set(own)
            assert all(equal(found[kind], own[kind]) for kind in own)


def test_what_one_shard_keeps_in_another_order_is_joined(whole: Trained, tmp_path: Path) -> None:
    """As files give it back: of a tensor without elements they name what it has otherwise."""
    shards = shards_of(whole, 2)
    given = shards[1].contents
    state = given.trainer_state
    assert state.optimizer is not None
    turned = copy.deepcopy(state.optimizer)
    for key, own in turned["state"].items():
        turned["state"][key] = dict(reversed(own.items()))
    other = replace(given, trainer_state=replace(state, optimizer=turned))
    written(tmp_path / "whole", [shards[0], replace(shards[1], contents=other)])
    tree = read(tmp_path / "whole")
    for name, parameter in whole.net.named_parameters():
        own = whole.optimizer.state[parameter]
        assert all(equal(tree["optimizer"]["state"][name][kind], own[kind]) for kind in own)


@pytest.mark.parametrize(
    ("lines", "given_up"),
    [
        ([(STEP, "a")], False),
        ([(STEP, "b"), (STEP - 1, "a"), (STEP, "a")], False),
        ([(STEP, "a"), (STEP - 1, "c"), (STEP, "b")], True),
        ([(STEP - 1, "a"), (STEP + 1, "a")], True),
    ],
)
def test_a_saved_step_of_a_past_that_was_given_up_is_known(
    whole: Trained, tmp_path: Path, lines: list[tuple[int, str]], *, given_up: bool
) -> None:
    """By the digest that the replica had at this step last."""
    run = RunDir(tmp_path)
    text = [f'{{"step":{step},"digest":"{digest}","seconds":0.1}}\n' for step, digest in lines]
    run.steps.write_text("".join(text) + '{"step":')  # the machine died
    state = shards_of(whole, 1)[0].contents.trainer_state
    values = dict(whole.net.named_parameters())
    layout = Layout.of([(tuple(v.shape), v.stride()) for v in values.values()], names=list(values))
    taken = Snapshot(STEP, "a", layout, ADAMW, {}, ())
    found = FoundStep(taken, "a folder", stored_state=state)
    assert shards_restore._is_of_past_given_up(run, found) == given_up


def test_shards_of_different_steps_are_not_joined(whole: Trained, tmp_path: Path) -> None:
    shards = shards_of(whole, 2)
    given = shards[1].contents
    later = replace(given, trainer_state=replace(given.trainer_state, step=STEP + 1))
    with refused_as(SHARDS_DIFFER, key="step", kind=StateError):
        written(tmp_path / "whole", [shards[0], replace(shards[1], contents=later)])
    assert not (tmp_path / "whole").exists()


def test_shards_of_different_lives_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [RunDir(tmp_path / str(shard)) for shard in range(3)]
    lives = {run.root: Incarnation(number=2, base=Step(4)) for run in runs}
    monkeypatch.setattr(shards_restore, "incarnation_of", lambda run: lives[run.root])
    shards_restore.refuse_other_lives(runs)
    for other in (Incarnation(number=1, base=Step(4)), Incarnation(number=2, base=Step(3))):
        lives[runs[1].root] = other
        with refused_as(SHARDS_OF_LIVES):
            shards_restore.refuse_other_lives(runs)


@pytest.mark.parametrize("left", [[0, 1], [1, 2], [0, 2]])
def test_shards_that_are_not_the_whole_are_not_joined(
    whole: Trained, tmp_path: Path, left: list[int]
) -> None:
    shards = shards_of(whole, 3)
    with refused_as(SHARDS_LACK_ELEMENTS, kind=StateError):
        written(tmp_path / "whole", [shards[n] for n in left])


def flow(source: str, destination: str, queue_pair: int) -> FlowKey:
    return FlowKey(source=source, destination=destination, dest_qp=queue_pair)


class Ring:
    """What FlowsElsewhere asks of an extractor."""

    def __init__(self) -> None:
        self.keys: list[FlowKey] = []
        self.states = np.full(16, PLAN_UNKNOWN)
        self.staging = self

    def own_keys(self) -> list[FlowKey]:
        return self.keys

    def plans(self) -> dict[str, Any]:
        return {"state": self.states}

    def ignore(self, index: int) -> None:
        self.states[index] = PLAN_IGNORE


def test_flows_of_other_addresses_are_left_out_as_they_appear() -> None:
    own = job_settings(stated(), 2)
    elsewhere, ring = FlowsElsewhere(own), Ring()
    rings = [cast(Extractor, ring)]
    ring.keys = [flow("10.0.0.1", "10.0.0.3", 7)]
    assert elsewhere.leave_out(rings) and not elsewhere.leave_out(rings)
    told = ADDRESS_NOT_SEEN(hosts=["fd00::1"], addresses=["10.0.0.1", "10.0.0.3"])
    assert elsewhere.why_nothing() == (told,)
    ring.keys += [flow("fd00::3", "fd00::1", 8), flow("10.0.0.3", "10.0.0.1", 9)]
    assert elsewhere.leave_out(rings)
    assert not elsewhere.why_nothing()
    assert elsewhere.left(rings) == [{1}]
    assert [state == PLAN_IGNORE for state in ring.states[:3]] == [True, False, True]


def test_of_one_job_nothing_is_left_out() -> None:
    ring = Ring()
    ring.keys = [flow("10.0.0.9", "10.0.0.8", 7)]
    elsewhere = FlowsElsewhere(stated(addresses=[], shard=0))
    rings = [cast(Extractor, ring)]
    assert not elsewhere.leave_out(rings) and elsewhere.left(rings) is None


@pytest.mark.parametrize("form", [None, "torch", "megatron"])
def test_other_forms_of_the_whole_are_refused_with_the_one_there_is(form: str | None) -> None:
    request = RestoreRequest(source=StepSource(), output=Path("out"), form=form)
    with refused_as(SHARDS_AS_DCP, shards=2):
        check_form(request, 2)
    check_form(replace(request, form="dcp"), 2)
