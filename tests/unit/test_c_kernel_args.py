"""One pass of C against torch's own optimizers, bit for bit, on every twin."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.onestep import HERE, Follower

from flowcheck._core import ffi, lib
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.replica import state_digest
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import tensor_digests

few = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=HERE)
def twin(request):
    assert lib.fc_step_choose(request.param.encode()) == 0
    yield request.param
    assert lib.fc_step_choose(ffi.NULL) == 0


fractions = st.floats(0, 0.9999).map(lambda x: round(x, 4))
common = {
    "lr": st.floats(1e-6, 3.0),
    "weight_decay": st.sampled_from([0, 0.0, 0.01, 0.3]),
    "maximize": st.booleans(),
}
sgd = st.fixed_dictionaries(
    common | {"momentum": st.just(0), "dampening": st.just(0), "nesterov": st.just(False)}
)
momentum = st.fixed_dictionaries(
    common | {"momentum": st.floats(0.01, 1.5), "dampening": fractions, "nesterov": st.just(False)}
)
nesterov = st.fixed_dictionaries(
    common | {"momentum": st.floats(0.01, 1.5), "dampening": st.just(0), "nesterov": st.just(True)}
)
adam = st.fixed_dictionaries(
    common
    | {
        "betas": st.tuples(fractions.filter(bool), fractions),
        "eps": st.sampled_from([0.0, 1e-15, 1e-8, 1e-3]),
        "amsgrad": st.just(False),
    }
)


@st.composite
def cases(draw):
    name = draw(st.sampled_from(["sgd", "adam", "adamw"]))
    kind = draw(st.sampled_from([sgd, momentum, nesterov])) if name == "sgd" else adam
    groups = draw(st.lists(kind, min_size=1, max_size=3))
    if name != "sgd" and draw(st.booleans()):
        groups = [group | {"amsgrad": True} for group in groups]
    size = st.one_of(st.integers(1, 40), st.integers(1, 3000), st.sampled_from([1024, 2048, 4096]))
    sizes = [draw(st.lists(size, min_size=1, max_size=4)) for _ in groups]
    foreach = draw(st.booleans())
    return Follower(name, groups, sizes, foreach, seed=draw(st.integers(0, 99)))


def gradients(follower, rng):
    """Of every magnitude, and with zeros, in float32."""
    n = follower.layout.elements
    values = rng.standard_normal(n) * np.exp(rng.standard_normal(n) * rng.uniform(0, 12))
    values[rng.random(n) < 0.05] = 0
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


@few
@given(case=cases(), seed=st.integers(0, 1 << 30))
def test_steps_have_the_bits_of_torchs_own_whatever_the_sizes_and_settings(case, seed, twin):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        used = np.ones(len(case.parameters), np.float32)
        case.step(gradients(case, rng), used)
        # Without an epsilon 0 / 0 is a NaN, and torch's loops for whole lines make another one.
        case.assert_same(any_nan=True)


@few
@given(case=cases(), seed=st.integers(0, 1 << 30))
def test_parameters_left_out_of_a_step_keep_their_bytes_and_count_nothing(case, seed, twin):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        used = (rng.random(len(case.parameters)) < 0.5).astype(np.float32)
        case.step(gradients(case, rng), used)
        case.assert_same()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_three_hundred_steps_stay_bit_equal(name, twin):
    settings = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {"amsgrad": True}
    case = Follower(name, [settings | {"lr": 1e-3, "weight_decay": 0.02}], [[1, 17, 300]])
    rng = np.random.default_rng(5)
    for _ in range(300):
        case.step(gradients(case, rng), np.ones(3, np.float32))
    case.assert_same()


@pytest.mark.parametrize("divisor, scale", [(3.0, None), (1.0, 0.37), (7.0, 0.11)])
def test_gradients_are_divided_and_clipped_as_torch_rounds_them(divisor, scale, twin):
    case = Follower("adamw", [{"lr": 1e-2, "maximize": True}], [[1000, 33]])
    rng = np.random.default_rng(6)
    for _ in range(5):
        case.step(gradients(case, rng), np.ones(2, np.float32), divisor=divisor, scale=scale)
        case.assert_same()


SPECIAL = np.array(
    (
        *(0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000),
        *(0x7FC00000, 0x7FA00001, 0xFFC12345, 0x1A000000, 0x5F000000, 0x7F000000),
    ),
    np.uint32,
).view(np.float32)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("size", [1, 15, 1344])
def test_infinities_denormals_and_nan_become_what_torch_makes_of_them(name, size, twin):
    settings = {"momentum": 0.9} if name == "sgd" else {"weight_decay": 0.1}
    case = Follower(name, [settings | {"lr": 1e-3}], [[size, size]])
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        for _ in range(6):
            gradient = gradients(case, rng)
            places = rng.random(gradient.size) < 0.3
            gradient[places] = rng.choice(SPECIAL, int(places.sum()))
            case.step(gradient, np.ones(2, np.float32))
            case.assert_same(any_nan=True)


@pytest.mark.parametrize("size", [1.0, 3e-16, 1e-18, 1e-21])
def test_second_moments_of_every_smallness_have_torchs_roots(size, twin):
    """Their roots are below what a Newton step rounds as elsewhere, in some elements or in all."""
    case = Follower("adamw", [{"lr": 1e-2, "eps": 1e-20}], [[2064, 1500]])
    rng = np.random.default_rng(12)
    for _ in range(4):
        gradient = rng.standard_normal(case.layout.elements) * size
        case.step(gradient.astype(np.float32), np.ones(2, np.float32))
        case.assert_same()


@pytest.mark.parametrize("block_bytes", [1024, 4096, 5 * 1024, 16 * 1024 * 1024])
def test_the_digests_of_a_pass_are_those_of_the_bytes_it_wrote(block_bytes, twin, monkeypatch):
    monkeypatch.setattr(state_digest, "BLOCK_BYTES", block_bytes)
    case = Follower("adam", [{"lr": 1e-2}], [[1, 59, 60, 61, 255, 256, 257, 1024, 7777, 3]])
    rng = np.random.default_rng(9)
    for left_out in (0, 3):
        used = np.ones(10, np.float32)
        used[left_out] = left_out == 0
        found = case.step(gradients(case, rng), used)
        parts = [
            case.copies[0][name][p.start : p.stop]
            for name in case.names
            for p in case.layout.parameters
        ]
        assert found == tensor_digests(parts)


@pytest.mark.parametrize("beta1", [0.9, 0.3])
def test_tensors_of_whole_lines_have_torchs_bits_and_their_digests(beta1, twin):
    settings = {"lr": 1e-2, "betas": (beta1, 0.99), "weight_decay": 0.1}
    case = Follower("adamw", [settings], [[1040, 1024, 4096, 1296, 5001]])
    rng = np.random.default_rng(10)
    for _ in range(5):
        found = case.step(gradients(case, rng), np.ones(5, np.float32))
        case.assert_same()
        parts = [
            case.copies[0][name][p.start : p.stop]
            for name in case.names
            for p in case.layout.parameters
        ]
        assert found == tensor_digests(parts)


def test_steps_with_ieees_square_roots_are_those_of_the_portable_twin(twin, monkeypatch):
    monkeypatch.setattr(c_kernel_args, "square_root_kind", lambda: lib.FC_STEP_ROOT_EXACT)
    cases = [Follower("adamw", [{"lr": 1e-2}], [[2064, 1500]]) for _ in range(2)]
    rng = np.random.default_rng(11)
    for _ in range(3):
        gradient = gradients(cases[0], rng)
        for case, name in zip(cases, (b"plain", twin.encode()), strict=True):
            assert lib.fc_step_choose(name) == 0
            case.step(gradient, np.ones(2, np.float32))
    for name, array in cases[0].copies[0].items():
        np.testing.assert_array_equal(array.view(np.uint32), cases[1].copies[0][name].view("u4"))


def test_settings_that_have_another_arithmetic_are_left_to_torch():
    parameters, layout = [torch.zeros(3)], Layout.of_shapes([(3,)])
    for made, why in [
        (torch.optim.Adam(parameters, fused=True), findings.OTHER_ARITHMETIC("fused")),
        (torch.optim.Adagrad(parameters), findings.NO_KERNEL("Adagrad")),
        (torch.optim.SGD(parameters, lr=torch.tensor(0.1)), findings.TENSOR_SETTING()),
        (
            torch.optim.Adam(parameters, differentiable=True),
            findings.OTHER_ARITHMETIC("differentiable"),
        ),
        (torch.optim.Adam(parameters, betas=(0.0, 0.9)), findings.NO_FIRST_BETA()),
    ]:
        assert c_kernel_args.why_no_c_kernel(made, layout) == why
    two_bytes = Layout.of_shapes([(3,)], dtype="bfloat16")
    why = c_kernel_args.why_no_c_kernel(torch.optim.SGD(parameters), two_bytes)
    assert why == findings.PARAMETER_DTYPE("bfloat16")
    assert c_kernel_args.why_no_c_kernel(torch.optim.SGD(parameters), layout) is None


def test_a_setting_beyond_float32_is_refused():
    case = Follower("sgd", [{"lr": 1.0}], [[3]])
    case.optimizer.param_groups[0]["lr"] = 1e39
    groups = [(case.optimizer.param_groups[0], [0])]
    one = np.ones(1, np.bool_)
    with pytest.raises(OverflowError, match="rate"):
        c_kernel_args.kernel_args(case.optimizer, groups, None, one, one)
