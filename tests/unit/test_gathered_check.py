"""A replica of a ZeRO job is held against what the trainers gathered, step by step."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.config.job_config import job_from
from flowcheck.findings.catalog.distributed_optimizers import (
    GATHERED_DIFFERS,
    MASTERS_BY_ROUNDED,
    MASTERS_COMPARED,
    NOT_COMPARED,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.sharding.zero_megatron_layout import (
    NamedParameter,
    ShardingSettings,
    shard_parameters,
)
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.lifecycle_record_schema import Incarnation
from flowcheck.stages.replica_update.gathered_check import GatheredCheck
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import BufferBroadcast, Parameter
from flowcheck.wire.training_job.operator_statements import ShardingStyle
from flowcheck.wire.training_job.training_spec import TrainingSpec, encode_spec

SHAPES = {"first.weight": (3, 5), "scale": (), "first.bias": (7,), "last.weight": (2, 9)}
RATE, RANKS = 0.1, 2


class Sent:
    """A source that has what was gathered behind the newest iteration."""

    def __init__(self, nbytes: int) -> None:
        self.module_buffer_bytes = nbytes
        self.applied_iteration = 0
        self.gathered: np.ndarray | None = None

    def module_buffers(self, iteration: int) -> np.ndarray | None:
        assert iteration == self.applied_iteration + 1
        return self.gathered


class Followed:
    """The replica, and the trainer beside it: torch's own optimizer on float32 copies."""

    def __init__(self, folder: Path, others: dict[str, tuple[int, ...]] = SHAPES) -> None:
        self.run = RunDir.create(folder / "run", folder / "memory")
        self.run.learned_folder.mkdir(exist_ok=True)
        named = [NamedParameter(name=n, shape=s, dtype="bfloat16") for n, s in others.items()]
        how = ShardingSettings(style=ShardingStyle.ZERO, round_robin_gradients=True)
        # Groups as a script has them: what has two dimensions, and the rest.
        groups = [[p for p in named if (len(p.shape) > 1) is many] for many in (True, False)]
        self.model = shard_parameters(groups, named, RANKS, how)
        self.run.units.write_bytes(msgspec.json.encode(self.model))
        sizes = [unit.block_bytes * RANKS for unit in self.model.units]
        job = TrainingSpec(
            parameters=tuple(
                Parameter(sizes=s, strides=(), element_bytes=2) for s in SHAPES.values()
            ),
            communicator_ranks=(RANKS,),
            buffer_broadcasts=tuple(
                BufferBroadcast(numbers=(), nbytes=size, unit=n) for n, size in enumerate(sizes)
            ),
            assumed=(MASTERS_BY_ROUNDED(),),
        )
        self.run.training_spec.write_bytes(encode_spec(job))
        layout = Layout.of_shapes(SHAPES.values(), names=list(SHAPES), dtype="bfloat16")
        torch.manual_seed(5)
        begun = [torch.randn(shape).bfloat16() for shape in SHAPES.values()]
        self.masters = [torch.nn.Parameter(p.float()) for p in begun]
        self.trainer = torch.optim.SGD(self.masters, lr=RATE)
        raw = np.concatenate([p.reshape(-1).view(torch.uint16).numpy() for p in begun])
        stated = OptimizerConfig(name="sgd", learning_rate=RATE, master_dtype="float32")
        self.replica = Replica.create(self.run.replica, layout, stated, raw)
        settings = job_from(
            {"source": [{"file": "a"}], "optimizer": {"name": "sgd", "learning_rate": 1}}
        )
        records = StepLog(self.run, settings, self.replica)
        self.said: list[Finding] = []
        self.sent = Sent(sum(sizes))
        given = self.run, job, self.replica, self.sent, records, self.said.append
        self.check = GatheredCheck(*given)

    def step(self) -> dict[str, torch.Tensor]:
        """Both make one; what the trainers have then, by name."""
        drawn = [torch.randn(shape).bfloat16() for shape in SHAPES.values()]
        for master, gradient in zip(self.masters, drawn, strict=True):
            master.grad = gradient.float()
        self.trainer.step()
        raw = np.concatenate([g.reshape(-1).view(torch.uint16).numpy() for g in drawn])
        self.replica.apply(self.replica.step + 1, raw)
        self.sent.applied_iteration += 1
        rounded = (master.detach().bfloat16() for master in self.masters)
        return dict(zip(SHAPES, rounded, strict=True))

    def gather(self, held: dict[str, torch.Tensor]) -> None:
        """As DeepSpeed lays it: parameters dealt to the ranks in turn, padded to 2 a rank."""
        flats = []
        for many in (True, False):
            names = [n for n, shape in SHAPES.items() if (len(shape) > 1) is many]
            dealt = [n for turn in range(RANKS) for n in names[turn::RANKS]]
            flat = torch.cat([held[n].reshape(-1) for n in dealt])
            flats.append(torch.cat([flat, flat.new_zeros(-len(flat) % (2 * RANKS))]))
        self.sent.gathered = torch.cat(flats).view(torch.uint8).numpy()
        self.check.look(Incarnation(), 1)


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_equal_steps_are_counted_and_told(followed: Followed) -> None:
    for _ in range(3):
        followed.gather(followed.step())
    assert not followed.said and audit_history_of(followed.run).failed is None
    assert MASTERS_COMPARED(steps=3, step=3) in assumptions_of(followed.run)
    followed.step()
    followed.sent.gathered = None  # some of it was lost
    followed.check.look(Incarnation(), 1)
    assert MASTERS_COMPARED(steps=3, step=3) in assumptions_of(followed.run)


@pytest.mark.parametrize("name", SHAPES)
def test_one_bit_of_one_element_is_told_with_its_parameter_once(
    followed: Followed, name: str
) -> None:
    followed.gather(followed.step())
    held = followed.step()
    held[name].reshape(-1).view(torch.uint8)[0] ^= 1
    followed.gather(held)
    elements = sum(p.numel() for p in followed.masters)
    assert followed.said == [
        GATHERED_DIFFERS(step=2, parameter=name, elements=1, all_elements=elements)
    ]
    failed = audit_history_of(followed.run).failed
    assert failed is not None and (failed.step, failed.first_difference) == (2, name)
    followed.gather(followed.step())
    assert len(followed.said) == 1 and audit_history_of(followed.run).failed == failed


def test_tainted_elements_are_left_out(followed: Followed) -> None:
    held = followed.step()
    held["scale"].reshape(-1).view(torch.uint8)[1] ^= 1
    at = int(np.prod(SHAPES["first.weight"]))
    followed.replica.taint_since(1, np.array([[at, at + 1]]))
    followed.gather(held)
    assert not followed.said


def test_other_parameters_than_the_models_are_not_compared_and_that_is_told(
    tmp_path: Path,
) -> None:
    other = SHAPES | {"last.weight": (9, 2)}
    followed = Followed(tmp_path, other)
    assert len(followed.said) == 1 and followed.said[0].is_any_of(NOT_COMPARED)
    followed.gather(followed.step())
    assert len(followed.said) == 1
