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
    assert rests[0].of(findings.GPU_KERNELS) and "cuda" in rests[0].arguments["kernels"]
    assert all(finding.until_audit for finding in rests)
    assert (findings.GPU_POWERS() in rests) == (implementation == "fused")


def test_a_rule_without_kernels_of_its_own_says_that_bits_may_differ(tmp_path):
    own = OptimizerConfig(name="rmsprop", learning_rate=1e-3, device="cuda")
    _, rests = stepped(tmp_path / "gpu", own)
    assert rests == (findings.CPU_FOR_GPU(findings.NO_KERNEL("RMSprop")),)


def test_a_norm_over_gradients_on_a_gpu_is_named(tmp_path):
    own = OptimizerConfig(name="adamw", learning_rate=1e-3, device="cuda", clip_norm=1.0)
    assert stepped(tmp_path / "gpu", own)[1][-1] == findings.GPU_NORM()


def test_a_version_of_torch_that_is_none_is_refused():
    optimizer = {"name": "adamw", "learning_rate": 0.1, "device": "cuda", "torch": "new"}
    with refused_as(VERSION, kind=ConfigError, key="optimizer.torch"):
        job_from({"source": [{"file": "x"}], "optimizer": optimizer})
