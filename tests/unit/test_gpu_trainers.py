"""A replica of a job whose optimizer runs on GPUs: CUDA's rounding, and what it rests on."""

from __future__ import annotations

import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.config import OptimizerConfig, job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.findings.catalog.refused_settings import VERSION
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.cuda_gradient_norm import CudaGradientNorm
from flowcheck.replica.param_layout import Layout

CPU = OptimizerConfig(name="adamw", learning_rate=1e-3)


def stepped(path, config, steps=5):
    layout = Layout.of_shapes([(64, 32), (64,)])
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(layout.elements).astype("<f4")
    replica = Replica.create(path, layout, config, weights)
    for step in range(1, steps + 1):
        replica.apply(step, rng.standard_normal(layout.elements).astype("<f4"))
    found = replica.parameters().tobytes(), replica.assumptions
    replica.close()
    return found


def rests_on(path, **stated):
    own = OptimizerConfig(**{"name": "adamw", "learning_rate": 1e-3, "device": "cuda", **stated})
    return stepped(path, own, steps=1)[1]


@pytest.mark.parametrize("implementation", [None, "loop", "foreach", "fused"])
def test_steps_of_a_gpu_are_others_in_their_last_bits_and_say_what_they_rest_on(
    tmp_path, implementation
):
    own = OptimizerConfig(
        name="adamw", learning_rate=1e-3, device="cuda", implementation=implementation
    )
    (cpu, nothing), (gpu, rests) = stepped(tmp_path / "cpu", CPU), stepped(tmp_path / "gpu", own)
    near = np.frombuffer(cpu, "<f4"), np.frombuffer(gpu, "<f4")
    np.testing.assert_allclose(*near, rtol=1e-5, atol=1e-7)
    assert cpu != gpu
    assert nothing == (findings.SQUARE_ROOTS(),)
    (only,) = rests
    assert only.is_any_of(findings.GPU_KERNELS_MEASURED) and "cuda" in only.arguments["kernels"]
    assert only.until_audit


def test_powers_are_assumed_where_the_gpus_are_not_known(tmp_path):
    fused = {"implementation": "fused", "betas": (0.9, 0.9985)}
    powers = findings.GPU_POWERS()
    assert powers in rests_on(tmp_path / "fused", **fused)
    assert powers not in rests_on(tmp_path / "foreach", betas=(0.9, 0.9985))
    assert powers not in rests_on(tmp_path / "sgd", name="sgd", implementation="fused")


def test_kernels_that_were_only_read_are_told_apart(tmp_path):
    (only,) = rests_on(tmp_path / "fused", implementation="fused", torch="2.10.0")
    assert only.is_any_of(findings.GPU_KERNELS) and "double" in only.arguments["kernels"]


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        (
            {"name": "sgd", "momentum": 0.9, "maximize": True},
            findings.FUSED_SGD_ADDS_OTHERWISE(),
        ),
        (
            {"name": "sgd", "momentum": 0.9, "dampening": 0.1, "maximize": True},
            findings.FUSED_SGD_ADDS_OTHERWISE(),
        ),
        (
            {"name": "adam", "weight_decay": 0.1, "maximize": True},
            findings.FUSED_ADAM_MAXIMIZES(),
        ),
    ],
)
def test_fused_kernels_that_add_in_an_unknown_order_are_not_claimed(tmp_path, stated, why):
    fused = {"implementation": "fused", **stated}
    assert rests_on(tmp_path / "fused", **fused) == (findings.CPU_FOR_GPU(why),)
    (measured,) = rests_on(tmp_path / "foreach", **stated)
    assert measured.is_any_of(findings.GPU_KERNELS_MEASURED)


def test_a_rule_without_kernels_of_its_own_says_that_bits_may_differ(tmp_path):
    own = OptimizerConfig(name="rmsprop", learning_rate=1e-3, device="cuda")
    _, rests = stepped(tmp_path / "gpu", own)
    assert rests == (findings.CPU_FOR_GPU(findings.NO_KERNEL("RMSprop")),)


@pytest.mark.parametrize(
    ("stated", "entry"),
    [
        ({}, findings.GPU_NORM_ORDER),
        ({"clip_foreach": False}, findings.GPU_NORM_ALONE),
        ({"clip_together": True}, findings.GPU_NORM),
    ],
)
def test_a_norm_over_gradients_on_a_gpu_is_named(tmp_path, stated, entry):
    assert rests_on(tmp_path / "gpu", clip_norm=1.0, **stated)[-1].is_any_of(entry)


@pytest.mark.parametrize(
    ("stated", "how"),
    [
        ({}, {"foreach": True, "halves": True}),
        ({"clip_foreach": False}, {"foreach": False, "halves": True}),
        ({"torch": "2.9.1"}, {"foreach": True, "halves": False}),
    ],
)
def test_steps_are_clipped_by_the_gpus_norm(tmp_path, stated, how):
    """SGD with a rate of 1 shows each clipped gradient whole."""
    layout = Layout.of_shapes([(n,) for n in range(7, 2007, 50)])
    rng = np.random.default_rng(3)
    most, config = 1.0, {"name": "sgd", "learning_rate": 1.0, "device": "cuda", **stated}
    factors = set()
    for turn in range(20):
        gradient = rng.standard_normal(layout.elements).astype("<f4")
        own = OptimizerConfig(clip_norm=most, **config)
        zeros = np.zeros(layout.elements, "<f4")
        replica = Replica.create(tmp_path / f"r{turn}", layout, own, zeros)
        replica.apply(1, gradient)
        found = replica.parameters().copy()
        replica.close()
        norm = CudaGradientNorm(layout, **how).of(gradient, np.ones(len(layout.parameters), bool))
        factor = np.float32(most) * (np.float32(1) / np.float32(norm + np.float32(1e-6)))
        np.testing.assert_array_equal(found, -(gradient * factor))
        double = np.sqrt(np.square(gradient.astype("f8")).sum())
        factors.add(bool(factor == np.float32(most / (double + 1e-6))))
    assert factors == {True, False}, "the exact norm would give the same"


def test_a_version_of_torch_that_is_none_is_refused():
    optimizer = {"name": "adamw", "learning_rate": 0.1, "device": "cuda", "torch": "new"}
    with refused_as(VERSION, kind=ConfigError, key="optimizer.torch"):
        job_from({"source": [{"file": "x"}], "optimizer": optimizer})
