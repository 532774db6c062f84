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
from flowcheck.findings.catalog.restored_state import BUFFERS_OF_STEP
from flowcheck.ops.job_setup.job_file_references import with_factory_model
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    frozen_and_buffers_of,
    read_frozen_and_buffers,
    write_frozen_and_buffers,
)
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.replica_update.model_buffers import store_checkpoint_buffers
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template, write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions

FACTORY = f"{frozen.__file__}:make"
STEPS, MORE = 200, 5


@dataclass(frozen=True)
class Followed:
    """A trainer after STEPS steps, and what FlowCheck gives of them."""

    net: frozen.Net
    optimizer: torch.optim.Optimizer
    parts: CheckpointContents
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
    model = with_factory_model(ModelConfig(factory=FACTORY))
    net = frozen.make()
    weights, others = frozen.sent(net)
    shapes = [(p.sizes, p.strides) for p in model.parameters]
    layout = Layout.of(shapes, names=model.names)
    rule = OptimizerConfig(name="adamw", learning_rate=1e-2, takes_frozen=request.param)
    path = tmp_path_factory.mktemp("followed") / "replica"
    replica = Replica.create(path, layout, rule, weights.view("<f4"))
    write_frozen_and_buffers(path, frozen_and_buffers_of(model.everything, model.keys, others))
    optimizer = frozen.optimizer_of(net, over_all=request.param)
    for number in range(1, STEPS + 1):
        replica.apply(number, frozen.step(net, optimizer, number))
    checkpoint_save.save(replica, path.parent / "kept")
    replica.close()
    parts = contents_of(trainer_state(step_snapshot.copy_snapshot(path, rule)), layout)
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
    with step_snapshot.hold_snapshot(
        followed.replica, followed.rule
    ) as taken:  # as of a chain that runs
        parts = contents_of(trainer_state(taken), followed.parts.layout)
        write(parts, tmp_path / "m.safetensors", "safetensors")
    net = frozen.make(seed=99)
    assert load_model(net, tmp_path / "m.safetensors", strict=True) == (set(), [])
    followed.assert_like(net.state_dict())
    write(followed.parts, tmp_path / "hf", "huggingface", FormatOptions(shard_bytes=1500))
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
    write(followed.parts, tmp_path / "ds", "deepspeed", FormatOptions(ranks=2, stage=stage))
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
    again = checkpoint_save.snapshot_of(folder)
    parts = contents_of(trainer_state(again), again.layout)
    write(parts, tmp_path / "again.pt", "torch")
    followed.assert_like(torch.load(tmp_path / "again.pt", weights_only=True)["model"])


def test_buffers_of_another_step_are_named_with_it(followed: Followed, tmp_path: Path) -> None:
    manifest = write(followed.parts, tmp_path / "step.pt", "torch")
    assert manifest.older == load_manifest(tmp_path / "step.pt").older
    assert set(manifest.older) == {"mask", *(f"norm.{name}" for name in STATISTICS)}
    assert set(manifest.older.values()) == {0}
    assert BUFFERS_OF_STEP(buffers=4, step=0) in manifest.resume_caveats
    assert not any(name.startswith(("first", "middle")) for name in manifest.older)
    alone = write(followed.parts, tmp_path / "step.safetensors", "safetensors")
    assert (
        alone.older == manifest.older and BUFFERS_OF_STEP(buffers=4, step=0) in alone.resume_caveats
    )


def test_the_trainers_own_file_is_audited_and_filled(followed: Followed, tmp_path: Path) -> None:
    tree = {"model": followed.net.state_dict(), "optimizer": followed.optimizer.state_dict()}
    torch.save(tree, tmp_path / "own.pt")
    layout = followed.parts.layout
    names = tuple(p.name for p in layout.parameters)
    template = load_template(tmp_path / "own.pt", layout, names)
    taken = step_snapshot.copy_snapshot(followed.replica, followed.rule)
    assert bitwise_audit.audit_snapshot(template, taken).passed
    like = contents_of(trainer_state(taken), layout, template)
    write(like, tmp_path / "like.pt", "torch")
    found = torch.load(tmp_path / "like.pt", weights_only=True)["model"]
    wanted = followed.net.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_an_audit_holds_frozen_parameters_against_the_trainers_own(
    followed: Followed, tmp_path: Path
) -> None:
    layout = followed.parts.layout
    taken = step_snapshot.copy_snapshot(followed.replica, followed.rule)
    tree = {"model": followed.net.state_dict(), "optimizer": followed.optimizer.state_dict()}
    for wrong in (False, True):
        if wrong:
            tree["model"]["middle.weight"] = tree["model"]["middle.weight"] + 1e-6
        torch.save(tree, tmp_path / "own.pt")
        template = load_template(tmp_path / "own.pt", layout, [p.name for p in layout.parameters])
        found = bitwise_audit.audit_frozen_and_buffers(
            bitwise_audit.audit_snapshot(template, taken), template, taken.frozen_and_buffers
        )
        assert [d.name for d in found.differences] == ["middle.weight"] * wrong
        assert set(found.not_compared) == {"mask", *(f"norm.{name}" for name in STATISTICS)}


def test_a_file_of_the_trainers_tells_buffers_of_its_step(
    followed: Followed, tmp_path: Path
) -> None:
    run = RunDir.create(tmp_path / "run", tmp_path)
    write_frozen_and_buffers(
        run.replica, step_snapshot.copy_snapshot(followed.replica, followed.rule).frozen_and_buffers
    )
    store_checkpoint_buffers(run, followed.net.state_dict(), STEPS)
    found = read_frozen_and_buffers(run.replica)
    assert (found.step, found.older(STEPS), found.missing) == (STEPS, {}, ())
    given_back = found.state_dict(dict(followed.parts.trainer_state.model))
    wanted = followed.net.state_dict()
    assert list(given_back) == list(wanted)
    assert all(torch.equal(given_back[name], value) for name, value in wanted.items())


def test_of_buffers_that_were_not_sent_none_is_invented(tmp_path: Path) -> None:
    """broadcast_buffers=False: DDP sends parameters alone."""
    model = with_factory_model(ModelConfig(factory=FACTORY))
    net = frozen.make()
    _, others = frozen.sent(net)
    only = sum(t.wire.nbytes for t in model.everything if not t.has_gradient and not t.buffer)
    beside = frozen_and_buffers_of(model.everything, model.keys, others[:only])
    known = beside.state_dict({n: p for n, p in net.named_parameters() if p.requires_grad})
    assert set(known) == set(net.state_dict()) - set(beside.missing)
    assert set(beside.missing) == {"mask", *(f"norm.{name}" for name in STATISTICS)}
