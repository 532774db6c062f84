"""What the job file says about the parameters, held against what the wire told of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.config import ELEMENT_BYTES, JobConfig, job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import NAME_TWICE, ONE_OF
from flowcheck.findings.catalog.replica_update_notes import NAME_COUNT, STATED_TYPE_SIZE, TYPE_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.messages import Message, Note
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.checkpoint.frozen_and_buffers import read_frozen_and_buffers
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.stages.replica_update.replica_creation import open_replica
from flowcheck.stages.replica_update.update_stage import UpdateService
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import Communicator, LearnedJob, Parameter, encode_job
from flowcheck.wire.training_job.operator_statements import StatedTensor


def stated(**model: object) -> JobConfig:
    return job_from(
        {
            "source": [{"file": "x"}],
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "replica": {"keep_bytes": 0},
            "model": model,
        }
    )


def learned(element_bytes: int) -> LearnedJob:
    shapes = ((3, 5), (7,))
    return LearnedJob(
        era=NcclEra.V2_19, communicators=(Communicator(ranks=2, channels=1),),
        edges=(), first_buckets=(), buckets=(), first=(), each=(),
        parameters=(
            Parameter(sizes=shapes[0], strides=(5, 1), element_bytes=element_bytes),
            Parameter(sizes=shapes[1], strides=(1,), element_bytes=element_bytes),
        ),
    )  # fmt: skip


def test_a_dtype_that_is_none_and_a_name_said_twice_are_refused_before_anything_starts() -> None:
    with refused_as(ONE_OF, kind=ConfigError, key="model.dtype", value="'float8'"):
        stated(dtype="float8")
    with refused_as(NAME_TWICE, kind=ConfigError, key="model.names", value="'b'"):
        stated(names=["a", "b", "b"])


def test_the_sizes_of_the_dtypes_are_those_of_the_replica() -> None:
    for dtype, size in ELEMENT_BYTES.items():
        assert Layout.of_shapes([(3,)], dtype=dtype).element_bytes == size


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 4), ("float32", 2), ("float64", 4)])
def test_a_dtype_the_wire_contradicts_is_refused_with_both_sizes(dtype: str, size: int) -> None:
    with refused_as(STATED_TYPE_SIZE, bytes=ELEMENT_BYTES[dtype], sizes=str(size)):
        layout_of(learned(size), stated(dtype=dtype))


def test_a_dtype_of_the_size_the_wire_tells_is_taken() -> None:
    assert layout_of(learned(2), stated(dtype="bfloat16")).dtype == "bfloat16"
    assert layout_of(learned(2), stated(dtype="float16")).dtype == "float16"
    with refused_as(TYPE_OPEN):
        layout_of(learned(2), stated())


class Heard:
    def __init__(self) -> None:
        self.notes: list[Finding] = []

    def send(self, to: str, message: Message) -> None:
        pass

    def report(self, message: Message) -> None:
        if isinstance(message, Note):
            self.notes.append(message.finding)


@pytest.mark.parametrize("names", [["fc.weight", "fc.bias"], ["fc.weight"], []])
def test_names_that_do_not_fit_cost_no_start_up(
    tmp_path: Path, shm: Path, names: list[str]
) -> None:
    run, config = RunDir.create(tmp_path / "run", shm), stated(names=names)
    run.config.write_text("{}")
    GradientShard.create(run.shard, gradient_bytes=22 * 4).close()
    run.weights.write_bytes(bytes(22 * 4))
    run.learned_job.write_bytes(encode_job(learned(4)))
    service, heard = UpdateService(run, config), Heard()
    service.start(heard)  # type: ignore[arg-type]
    service.stop()
    fit = len(names) == 2
    own = tuple(names) if fit else ("param.0", "param.1")
    assert bool(heard.notes) == (bool(names) and not fit)
    assert all(note == NAME_COUNT(names=1, parameters=2) for note in heard.notes)
    run.config.write_bytes(b"")
    run.settings = lambda: config  # type: ignore[method-assign]
    found = newest_step(run, settle=False)
    assert tuple(p.name for p in found.snapshot.layout.parameters) == own
    assert found.names == (own if fit else ()), "restore goes by order and shape without them"
    run.remove()


def test_a_kill_before_the_replica_is_there_costs_no_frozen_parameter_and_no_buffer(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each of the files that a first start writes, before and behind it."""
    job, still = learned(4), Parameter(sizes=(2,), strides=(1,), element_bytes=4, dtype="float32")
    trains = zip(("fc.weight", "fc.bias"), job.parameters, strict=True)
    everything = (
        *(StatedTensor(name=name, wire=wire) for name, wire in trains),
        StatedTensor(name="frozen", wire=still, has_gradient=False),
        StatedTensor(name="mean", wire=still, has_gradient=False, buffer=True),
    )
    keys = tuple((tensor.name, tensor.name) for tensor in everything)
    config = stated(names=["fc.weight", "fc.bias"])
    model = msgspec.structs.replace(config.model, everything=everything, keys=keys)
    config = msgspec.structs.replace(config, model=model)
    sent = np.arange(4, dtype=np.float32)

    class Killed(BaseException):
        pass

    def perhaps(left: list[int]) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Killed

    real = Path.rename  # of a file onto none they are the same
    for deadly in range(6):
        run = RunDir.create(tmp_path / f"run-{deadly}", shm / str(deadly))
        run.weights.write_bytes(bytes(22 * 4))
        run.auxiliary_weights.write_bytes(sent.tobytes())
        left = [deadly]

        def renamed(
            own: Path, to: Path, left: list[int] = left, real: Callable[..., Path] = real
        ) -> Path:
            perhaps(left)
            real(own, to)
            perhaps(left)
            return to

        with monkeypatch.context() as patch:
            for name in ("rename", "replace"):
                patch.setattr(Path, name, renamed)
            with suppress(Killed):
                open_replica(run, config, job, leaves_out=False, say=print)[0].close()
        open_replica(run, config, job, leaves_out=False, say=print)[0].close()
        beside = read_frozen_and_buffers(run.replica)
        told = {name: tensor.tolist() for name, tensor in beside.tensors.items()}
        assert told == {"frozen": [0, 1], "mean": [2, 3]}, deadly
        run.remove()
