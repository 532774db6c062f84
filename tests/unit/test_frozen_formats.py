"""Frozen parameters, tied weights and buffers stand in every output without a template, as far as a
stated model and the start-up broadcast tell them; torch's own loaders judge."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model
from support import frozen
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import flowcheck
from flowcheck.config import ModelConfig, OptimizerConfig
from flowcheck.ops.running.stated import with_factory
from flowcheck.replica import checkpoint
from flowcheck.replica.files.manifest import load_manifest
from flowcheck.replica.given import given
from flowcheck.replica.kept import snapshot
from flowcheck.replica.kept.beside import beside_of, read_beside, write_beside
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.beside import keep_given
from flowcheck.vault import audit
from flowcheck.vault.formats import write
from flowcheck.vault.formats.parts import Options, Parts, parts_of
from flowcheck.vault.template import load_template

FACTORY = f"{frozen.__file__}:make"
STEPS, MORE = 200, 5


@dataclass(frozen=True)
class Followed:
    """A trainer after STEPS steps, and what FlowCheck gives of them."""

    net: frozen.Net
    optimizer: torch.optim.Optimizer
    parts: Parts
    replica: Path
    rule: OptimizerConfig

    def assert_like(self, model: dict[str, torch.Tensor]) -> None:
        """The trainer's weights bit for bit; buffers that change are those of the start."""
        wanted, began = self.net.state_dict(), frozen.make().state_dict()
        assert list(model) == list(wanted)
        for name, value in wanted.items():
            old = began[name] if name.startswith("norm.") and name[5:] in STATISTICS else value
            assert model[name].dtype == value.dtype and torch.equal(model[name], old), name


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(scope="module", params=[False, True], ids=["over trained", "over all"])
def followed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    torch.set_num_threads(1)
    model = with_factory(ModelConfig(factory=FACTORY))
    net = frozen.make()
    weights, others = frozen.sent(net)
    shapes = [(p.sizes, p.strides) for p in model.parameters]
    layout = Layout.of(shapes, names=model.names)
    rule = OptimizerConfig(name="adamw", learning_rate=1e-2, takes_frozen=request.param)
    path = tmp_path_factory.mktemp("followed") / "replica"
    replica = Replica.create(path, layout, rule, weights.view("<f4"))
    write_beside(path, beside_of(model.everything, model.keys, others))
    optimizer = frozen.optimizer_of(net, over_all=request.param)
    for number in range(1, STEPS + 1):
        replica.apply(number, frozen.step(net, optimizer, number))
    checkpoint.save(replica, path.parent / "kept")
    replica.close()
    parts = parts_of(given(snapshot.of_state(path, rule)), layout)
    return Followed(net, optimizer, parts, path, rule)


def goes_on(net: frozen.Net, optimizer: torch.optim.Optimizer, of: Followed) -> None:
    """Both take the same steps; the trainer's are those of a copy."""
    own = frozen.make()
    own.load_state_dict(of.net.state_dict())
    its = frozen.optimizer_of(own, over_all=of.rule.takes_frozen)
    its.load_state_dict(deepcopy(of.optimizer.state_dict()))
    for number in range(STEPS + 1, STEPS + 1 + MORE):
        frozen.step(own, its, number)
        frozen.step(net, optimizer, number)
    pairs = zip(own.named_parameters(), net.parameters(), strict=True)
    assert [name for (name, a), b in pairs if not torch.equal(a, b)] == []


def test_torch_loads_its_file_strictly_and_goes_on_bit_for_bit(
    followed: Followed, tmp_path: Path
) -> None:
    write(followed.parts, tmp_path / "step.pt", "torch")
    tree = torch.load(tmp_path / "step.pt", weights_only=True)
    followed.assert_like(tree["model"])
    net = frozen.make(seed=99)
    net.load_state_dict(tree["model"], strict=True)
    assert net.head.weight is net.embedding.weight
    optimizer = frozen.optimizer_of(net, over_all=followed.rule.takes_frozen)
    optimizer.load_state_dict(tree["optimizer"])
    goes_on(net, optimizer, followed)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_loads_every_name_and_goes_on_bit_for_bit(followed: Followed, tmp_path: Path) -> None:
    write(followed.parts, tmp_path / "dcp", "dcp")
    net = frozen.make(seed=99)
    optimizer = frozen.optimizer_of(net, over_all=followed.rule.takes_frozen)
    tree = {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer),
    }
    assert {"head.weight", "embedding.weight", "first.weight", "mask"} <= tree["model"].keys()
    dcp_load(tree, checkpoint_id=tmp_path / "dcp", no_dist=True)
    followed.assert_like(tree["model"])
    set_model_state_dict(net, tree["model"])
    set_optimizer_state_dict(net, optimizer, optim_state_dict=tree["optimizer"])
    goes_on(net, optimizer, followed)


def test_safetensors_and_huggingface_hold_each_tensor_once(
    followed: Followed, tmp_path: Path
) -> None:
    with snapshot.held(followed.replica, followed.rule) as taken:  # as of a chain that runs
        parts = parts_of(given(taken), followed.parts.layout)
        write(parts, tmp_path / "m.safetensors", "safetensors")
    net = frozen.make(seed=99)
    assert load_model(net, tmp_path / "m.safetensors", strict=True) == (set(), [])
    followed.assert_like(net.state_dict())
    write(followed.parts, tmp_path / "hf", "huggingface", Options(shard_bytes=1500))
    found: dict[str, torch.Tensor] = {}
    for file in sorted((tmp_path / "hf").glob("*.safetensors")):
        found |= load_file(file)
    tied = {"head.weight": found["embedding.weight"]}
    assert "head.weight" not in found
    followed.assert_like({name: (found | tied)[name] for name in net.state_dict()})


@pytest.mark.parametrize("stage", [0, 2])
def test_deepspeeds_file_loads_strictly_and_tells_frozen_parameters_from_buffers(
    stage: int, followed: Followed, tmp_path: Path
) -> None:
    write(followed.parts, tmp_path / "ds", "deepspeed", Options(ranks=2, stage=stage))
    place = tmp_path / "ds" / f"global_step{STEPS}" / "mp_rank_00_model_states.pt"
    kept = torch.load(place, weights_only=False)
    net = frozen.make(seed=99)
    net.load_state_dict(kept["module"], strict=True)
    followed.assert_like(net.state_dict())
    still = {name: p for name, p in net.named_parameters() if not p.requires_grad}
    # DeepSpeedEngine._get_zero_frozen_param_attributes, in the model's order.
    assert list(kept["frozen_param_fragments"]) == list(still)
    assert all(torch.equal(kept["frozen_param_fragments"][n], p) for n, p in still.items())
    assert kept["frozen_param_shapes"] == {n: p.shape for n, p in still.items()}
    assert kept["buffer_names"] == ["mask", *(f"norm.{name}" for name in STATISTICS)]
    assert kept["shared_params"] == {"head.weight": "embedding.weight"}


def test_a_kept_step_of_our_own_has_them_too(followed: Followed, tmp_path: Path) -> None:
    folder = followed.replica.parent / "kept" / f"step-{STEPS}"
    tree = flowcheck.load(folder)
    followed.assert_like(tree["model"])
    net = frozen.make(seed=99)
    net.load_state_dict(tree["model"], strict=True)
    optimizer = frozen.optimizer_of(net, over_all=followed.rule.takes_frozen)
    optimizer.load_state_dict(tree["optimizer"])
    goes_on(net, optimizer, followed)
    again = checkpoint.snapshot_of(folder)
    parts = parts_of(given(again), again.layout)
    write(parts, tmp_path / "again.pt", "torch")
    followed.assert_like(torch.load(tmp_path / "again.pt", weights_only=True)["model"])


def test_buffers_of_another_step_are_named_with_it(followed: Followed, tmp_path: Path) -> None:
    manifest = write(followed.parts, tmp_path / "step.pt", "torch")
    assert manifest.older == load_manifest(tmp_path / "step.pt").older
    assert set(manifest.older) == {"mask", *(f"norm.{name}" for name in STATISTICS)}
    assert set(manifest.older.values()) == {0}
    assert "4 buffers are of step 0" in manifest.lacks
    assert not any(name.startswith(("first", "middle")) for name in manifest.older)
    alone = write(followed.parts, tmp_path / "step.safetensors", "safetensors")
    assert alone.older == manifest.older and "4 buffers are of step 0" in alone.lacks


def test_the_trainers_own_file_is_audited_and_filled(followed: Followed, tmp_path: Path) -> None:
    tree = {"model": followed.net.state_dict(), "optimizer": followed.optimizer.state_dict()}
    torch.save(tree, tmp_path / "own.pt")
    layout = followed.parts.layout
    names = tuple(p.name for p in layout.parameters)
    template = load_template(tmp_path / "own.pt", layout, names)
    taken = snapshot.of_state(followed.replica, followed.rule)
    assert audit.compare(template, taken).passed
    like = parts_of(given(taken), layout, template)
    write(like, tmp_path / "like.pt", "torch")
    found = torch.load(tmp_path / "like.pt", weights_only=True)["model"]
    wanted = followed.net.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_an_audit_holds_frozen_parameters_against_the_trainers_own(
    followed: Followed, tmp_path: Path
) -> None:
    layout = followed.parts.layout
    taken = snapshot.of_state(followed.replica, followed.rule)
    tree = {"model": followed.net.state_dict(), "optimizer": followed.optimizer.state_dict()}
    for wrong in (False, True):
        if wrong:
            tree["model"]["middle.weight"] = tree["model"]["middle.weight"] + 1e-6
        torch.save(tree, tmp_path / "own.pt")
        template = load_template(tmp_path / "own.pt", layout, [p.name for p in layout.parameters])
        found = audit.and_rest(audit.compare(template, taken), template, taken.beside)
        assert [d.name for d in found.differences] == ["middle.weight"] * wrong
        assert set(found.others) == {"mask", *(f"norm.{name}" for name in STATISTICS)}


def test_a_file_of_the_trainers_tells_buffers_of_its_step(
    followed: Followed, tmp_path: Path
) -> None:
    run = RunDir.create(tmp_path / "run", tmp_path)
    write_beside(run.replica, snapshot.of_state(followed.replica, followed.rule).beside)
    keep_given(run, followed.net.state_dict(), STEPS)
    found = read_beside(run.replica)
    assert (found.step, found.older(STEPS), found.missing) == (STEPS, {}, ())
    given_back = found.state_dict(dict(followed.parts.given.model))
    wanted = followed.net.state_dict()
    assert list(given_back) == list(wanted)
    assert all(torch.equal(given_back[name], value) for name, value in wanted.items())


def test_of_buffers_that_were_not_sent_none_is_invented(tmp_path: Path) -> None:
    """broadcast_buffers=False: DDP sends parameters alone."""
    model = with_factory(ModelConfig(factory=FACTORY))
    net = frozen.make()
    _, others = frozen.sent(net)
    only = sum(t.wire.nbytes for t in model.everything if not t.trains and not t.buffer)
    beside = beside_of(model.everything, model.keys, others[:only])
    known = beside.state_dict({n: p for n, p in net.named_parameters() if p.requires_grad})
    assert set(known) == set(net.state_dict()) - set(beside.missing)
    assert set(beside.missing) == {"mask", *(f"norm.{name}" for name in STATISTICS)}
