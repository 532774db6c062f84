"""Steps, powers, norms and averages against what torch computed on a GPU: every bit, and on every
twin of C that this machine has."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from support.gpu_measured import ARRAYS, PROGRAM, TOLD, first_other, settings_of
from support.onestep import HERE, STATES

from flowcheck._core import ffi, lib
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.optimizer_rules import cuda_powers
from flowcheck.replica.optimizer.cuda_gradient_norm import CudaGradientNorm, norm_alone
from flowcheck.replica.optimizer.gradient_clipping import factor_of_norm
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.optimizer_step.c_kernel_pass import KernelPlan, StepArguments
from flowcheck.replica.optimizer_step.cuda_kernel_choice import MEASURED_WITH, arithmetic_of
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.worker_threads import WorkerThreads

STEPPED_BY_C = [label for label in TOLD["steps"] if label.startswith(("SGD", "Adam"))]
SGD_OTHERWISE, ADAM_OTHERWISE = findings.FUSED_SGD_ADDS_OTHERWISE(), findings.FUSED_ADAM_MAXIMIZES()
REFUSED = {
    "SGD-fused-4": (SGD_OTHERWISE, 2),
    "SGD-fused-35": (SGD_OTHERWISE, 2),
    "SGD-fused-36": (SGD_OTHERWISE, 2),
    "Adam-fused-38": (ADAM_OTHERWISE, 1),
}
"""{case: (why C does not step it, first step at which C has other bits)}: all of them maximize."""
AS_ON_A_CPU = [label for label in TOLD["steps"] if label.startswith(("ASGD", "Rprop"))]
CLIPS = ((3, 1.0), (50, 0.1), (300, 5.0), (700, 1e9))
"""As `clipped` of the program has them."""


@pytest.fixture(params=HERE)
def twin(request):
    assert lib.fc_step_choose(request.param.encode()) == 0
    yield request.param
    assert lib.fc_step_choose(ffi.NULL) == 0


def made(label):
    name, settings = settings_of(label)
    own = [torch.zeros(shape) for shape in PROGRAM.SHAPES]
    return getattr(torch.optim, name)(own, **settings)


def digests_of(label):
    """Of our steps, as `steps_of` of the program has torch's."""
    optimizer, layout = made(label), Layout.of_shapes(PROGRAM.SHAPES)
    (group,), sgd = optimizer.param_groups, isinstance(optimizer, torch.optim.SGD)
    arithmetic = arithmetic_of("cuda", optimizer, TOLD["about"]["torch"])
    states = STATES["sgd"] if sgd else STATES["adam"][: 2 + bool(group["amsgrad"])]
    names = ("parameters", *(states if not sgd or group["momentum"] else ()))
    source, target = ({n: np.zeros(layout.elements, "f4") for n in names} for _ in range(2))
    source["parameters"][:] = PROGRAM.numbers(1, PROGRAM.ELEMENTS, 115, 128)
    flat, count, found = KernelPlan(layout, names), len(PROGRAM.SHAPES), []
    used, groups = np.ones(count, bool), [(group, range(count))]
    for step in range(1, PROGRAM.STEPS + 1):
        before = None if sgd else np.full(count, step - 1, "f4")
        held = np.full(count, step > 1)
        gradient = PROGRAM.numbers(1000 + step, PROGRAM.ELEMENTS, 104, 127)
        table = c_kernel_args.kernel_args(
            optimizer, groups, before, held, used, arithmetic=arithmetic
        )
        flat.begin(StepArguments(table, lib.FC_STEP_ROOT_EXACT, gradient), source, target).run()
        source, target = target, source
        found.append(hashlib.sha256(b"".join(source[n].tobytes() for n in names)).hexdigest())
    return found


def test_what_findings_say_of_the_machine_is_what_the_data_are_of():
    assert TOLD["about"]["gpu"] == MEASURED_WITH["gpu"]
    assert TOLD["about"]["torch"] == MEASURED_WITH["torch"]


@pytest.mark.parametrize("label", [label for label in STEPPED_BY_C if label not in REFUSED])
def test_130_steps_have_the_gpus_bits(label, twin):
    optimizer, layout = made(label), Layout.of_shapes(PROGRAM.SHAPES)
    arithmetic = arithmetic_of("cuda", optimizer, TOLD["about"]["torch"])
    assert c_kernel_args.why_no_c_kernel(optimizer, layout, arithmetic) is None
    assert first_other(label, digests_of(label)) is None


@pytest.mark.parametrize("label", REFUSED)
def test_what_c_has_other_bits_for_is_not_stepped_by_c(label):
    optimizer, layout = made(label), Layout.of_shapes(PROGRAM.SHAPES)
    arithmetic = arithmetic_of("cuda", optimizer, TOLD["about"]["torch"])
    why = c_kernel_args.why_no_c_kernel(optimizer, layout, arithmetic)
    assert (why, first_other(label, digests_of(label))) == REFUSED[label]


def test_weight_decay_of_fused_adam_past_a_block_of_threads_and_a_run_of_c(twin):
    """Which elements round it twice, counted by the kernel's own loops, in a tensor of several
    turns whose memory begins within a cache line."""
    shapes = [(3,), (5001,), (5000,)]
    layout, rng = Layout.of_shapes(shapes), np.random.default_rng(5)
    optimizer = torch.optim.Adam([torch.zeros(s) for s in shapes], weight_decay=0.1, fused=True)
    names = ("parameters", *STATES["adam"][:2])
    source, target = ({n: np.zeros(layout.elements, "f4") for n in names} for _ in range(2))
    source["parameters"][:] = rng.standard_normal(layout.elements)
    gradient = rng.standard_normal(layout.elements).astype("f4")
    one, groups = np.ones(3, bool), [(optimizer.param_groups[0], range(3))]
    arithmetic = arithmetic_of("cuda", optimizer, None)
    table = c_kernel_args.kernel_args(
        optimizer, groups, np.zeros(3, "f4"), ~one, one, arithmetic=arithmetic
    )
    flat = KernelPlan(layout, names)
    flat.begin(StepArguments(table, lib.FC_STEP_ROOT_EXACT, gradient), source, target).run()
    decay, beta = np.float32(0.1), np.float32(0.9)
    for p in layout.parameters:
        own, g = source["parameters"][p.start : p.stop], gradient[p.start : p.stop]
        once = (own.astype("f8") * float(decay) + g).astype("f4")
        decayed = np.where(first_of_four(p.elements), g + own * decay, once)
        # A product of two float32 is exact in double; the sum, rounded to double first, is fma's
        # for every number drawn here.
        inner = (decayed - float(beta) * decayed.astype("f8")).astype("f4")
        np.testing.assert_array_equal(target["exp_avg"][p.start : p.stop], inner)
        assert np.any(decayed != once) or p.elements < 100


def first_of_four(elements):
    """[element] bool, as FusedAdamMathFunctor's two loops go through a tensor."""
    found = np.zeros(elements, bool)
    if elements % 4 == 0:
        found[::4] = True
        return found
    for start in range(0, elements, 4 * 512):
        for thread in range(512):
            if start + thread < elements:
                found[start + thread] = True
    return found


@pytest.mark.parametrize("beta", ["0.3", "0.9", "0.95", "0.98", "0.99", "0.999"])
def test_powers_are_those_of_cudas_powf(beta):
    base = np.float32(float(beta))
    steps, values = ARRAYS[f"power.{beta}.steps"], ARRAYS[f"power.{beta}.values"]
    assert cuda_powers.is_measured(float(beta))
    last = int(np.ceil(-27 * np.log(2) / np.log(float(base))))
    told = dict(zip(steps.tolist(), values, strict=True))
    for step in range(1, last + 1):
        expected = told.get(step, np.float32(float(base) ** step))
        assert cuda_powers.cuda_power(base, float(step)) == expected, step


def test_the_power_of_another_beta_is_rounded_once():
    base = np.float32(0.9123)
    assert not cuda_powers.is_measured(0.9123)
    assert cuda_powers.cuda_power(base, 77.0) == np.float32(float(base) ** 77)


def norms_of(values, sizes, **how):
    return np.array(
        [
            CudaGradientNorm(Layout.of_shapes([(n,)]), **how).of(
                np.ascontiguousarray(values[:n]), np.ones(1, bool)
            )
            for n in sizes
        ]
    )


@pytest.mark.parametrize(("foreach", "measured"), [(True, "foreach"), (False, "alone")])
def test_norms_of_tensors_of_any_size_have_the_gpus_bits(foreach, measured, twin):
    values = PROGRAM.numbers(77, max(PROGRAM.NUMELS) + 4, 100, 127)
    told = ARRAYS[f"norm.{measured}.0"]
    # The norm of one norm is itself unless its square is rounded away.
    assert all(norm_alone(told[i : i + 1], halves=True) == told[i] for i in range(len(told)))
    found = norms_of(values, PROGRAM.NUMELS, foreach=foreach, halves=True)
    np.testing.assert_array_equal(found.view("u4"), told.view("u4"))


def test_norms_of_norms_have_the_gpus_bits(twin):
    values = np.abs(PROGRAM.numbers(77, max(PROGRAM.NUMELS) + 4, 100, 127))
    told = ARRAYS["norm.stacks"]
    found = np.array([norm_alone(values[:n].copy(), halves=True) for n in PROGRAM.STACKS])
    np.testing.assert_array_equal(found.view("u4"), told.view("u4"))


def model(case):
    """(its layout, its gradients, the norm they are clipped to)"""
    count, most = CLIPS[case]
    sizes = [int(n) for n in PROGRAM.numbers(50 + case, count).view("u4") % 30000 + 1]
    flat = PROGRAM.numbers(60 + case, sum(sizes), 100, 125)
    return Layout.of_shapes([(n,) for n in sizes]), flat, most


@pytest.mark.parametrize("case", range(len(CLIPS)))
def test_clipped_gradients_have_the_gpus_bits(case, twin):
    layout, flat, most = model(case)
    taken = np.ones(len(layout.parameters), bool)
    norm = CudaGradientNorm(layout, foreach=True, halves=True).of(flat, taken)
    alone = CudaGradientNorm(layout, foreach=False, halves=True).of(flat, taken)
    assert norm == ARRAYS[f"clip.{case}.norm"] and alone == ARRAYS[f"clip.{case}.alone"]
    clipped = flat * np.float32(factor_of_norm(torch.tensor(norm), most))
    digest = hashlib.sha256(clipped.tobytes()).digest()
    assert digest == ARRAYS[f"clip.{case}.sha256"].tobytes()


def test_threads_change_no_bit_of_a_norm():
    layout, flat, _ = model(2)
    taken = np.arange(len(layout.parameters)) % 3 > 0
    norm = CudaGradientNorm(layout, foreach=True, halves=True)
    _, pool = WorkerThreads(4).pool()
    with pool:
        for joins in (False, True):
            assert norm.of(flat, taken, pool, 4, joins=joins) == norm.of(flat, taken)
    assert norm.of(flat, taken) != norm.of(flat, np.ones_like(taken))


def earlier(values):
    """torch.linalg.vector_norm before torch 2.10, of 8 to 128 numbers: block_x_reduce of its
    Reduce.cuh, a thread after the other."""
    threads = 1 << values.size.bit_length() - 1
    own = [np.float32(0)] * threads
    for at, x in enumerate(values):  # a second number of a thread has a sum of its own
        own[at % threads] = np.float32(own[at % threads] + np.float32(x * x))
    while threads > 32:
        threads //= 2
        own = [own[t] + own[t + threads] for t in range(threads)]
    offset = 1
    while offset < threads:
        own = [own[t] + own[t + offset] if t + offset < threads else own[t] for t in range(threads)]
        offset *= 2
    return np.sqrt(own[0])


@pytest.mark.parametrize("count", [8, 21, 32, 33, 64, 100, 127, 128])
def test_before_torch_2_10_neighbours_were_added(count, twin):
    # Few bits, so that squares and their first sums are exact whatever is fused.
    rng = np.random.default_rng(count)
    values = (rng.integers(1, 2000, count) * 2.0 ** rng.integers(-9, 9, count)).astype("f4")
    assert norm_alone(values, halves=False) == earlier(values)


def test_the_orders_of_releases_differ():
    rng = np.random.default_rng(1)
    values = np.abs(rng.standard_normal((50, 300))).astype("f4")
    both = [[norm_alone(v, halves=h) for v in values] for h in (True, False)]
    assert both[0] != both[1]
    np.testing.assert_allclose(*both, rtol=1e-6)


@pytest.mark.skipif(
    not c_kernel_args.cpu_kernels_use_fma(), reason="torch has no fused multiply-add here"
)
@pytest.mark.parametrize("label", AS_ON_A_CPU)
def test_rules_that_have_the_same_bits_on_a_cpu(label):
    name, settings = settings_of(label)
    digests = PROGRAM.steps_of(name, settings, "cpu", {}, torch.float32)
    assert first_other(label, digests) is None


@pytest.mark.skipif(
    not c_kernel_args.cpu_kernels_use_fma(), reason="torch has no fused multiply-add here"
)
def test_averages_of_weights_have_the_same_bits_on_a_cpu():
    for name, own in PROGRAM.averages("cpu").items():
        assert hashlib.sha256(own.tobytes()).digest() == ARRAYS[name].tobytes(), name
