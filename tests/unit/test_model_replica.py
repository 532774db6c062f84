"""Replica: one committed step at a time, in a file that says what it is."""

import os
import re
import stat

import numpy as np
import pytest
from support.refused_as import like, refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.parameter_layouts import BYTE_COUNT
from flowcheck.findings.catalog.replica_state_errors import (
    ALREADY_HERE,
    BYTES_CHANGED,
    CANNOT_OPEN,
    CLOSED,
    CUT_OFF,
    HEADER_DAMAGED,
    NO_WHOLE_STEP,
    OPEN_ELSEWHERE,
    OTHER_KIND,
    OTHER_OPTIMIZER_THAN,
    OTHER_VERSION,
    OUT_OF_ORDER,
    TOO_SHORT,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import HEADER_BYTES, peek_commit

ADAM = OptimizerConfig(name="adam", learning_rate=1e-2)
SLOTS = (256, 320)  # header.py: byte offsets of the commit slots of two copies
IN_STEP = 128


@pytest.fixture
def layout():
    return Layout.of_shapes([(3, 5), (1,), (17,)], names=["w", "s", "b"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def make(layout, path):
    """Creates or opens replicas and closes them afterwards."""
    made = []

    def create(optimizer=ADAM):
        weights = np.linspace(-1, 1, layout.elements).astype(np.float32)
        made.append(Replica.create(path, layout, optimizer, weights))
        return made[-1]

    yield create
    for replica in made:
        replica.close()


def gradient(step: int, layout: Layout) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(layout.elements).astype(np.float32)


def overwrite(path, offset: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def test_a_new_replica_holds_the_weights_at_step_zero_and_only_its_owner_may_read(
    make, path, layout
):
    replica = make()
    assert (replica.step, replica.has_optimizer_state, replica.layout) == (0, False, layout)
    assert replica.parameters().tolist() == np.linspace(-1, 1, 33).astype(np.float32).tolist()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_blocks * 512 >= path.stat().st_size, "room is reserved in full"
    assert [entry.name for entry in path.parent.iterdir()] == ["state"]


def test_every_flat_array_begins_on_a_cache_line(make):
    replica = make()
    assert set(replica.sections()) == {"parameters", "exp_avg", "exp_avg_sq", "step"}
    assert all(a.ctypes.data % 64 == 0 for a in replica.sections().values())


def test_a_reopened_replica_goes_on_where_the_last_one_committed(make, path, layout):
    replica = make()
    for step in (1, 2, 3):
        replica.apply(step, gradient(step, layout))
    kept = {name: array.tobytes() for name, array in replica.sections().items()}
    digest = replica.digest
    replica.close()
    again = Replica.open(path, ADAM)
    assert (again.step, again.digest, again.interrupted_step) == (3, digest, 0)
    assert {name: array.tobytes() for name, array in again.sections().items()} == kept
    again.close()


@pytest.mark.parametrize("step", [0, 1, 2, 4, -1])
def test_a_step_out_of_order_is_refused_and_changes_nothing(make, layout, step):
    replica = make()
    replica.apply(1, gradient(1, layout))
    replica.apply(2, gradient(2, layout))
    digest = replica.digest
    with pytest.raises(StateError) as refused:
        replica.apply(step, gradient(3, layout))
    assert refused.value.finding == OUT_OF_ORDER(step=2, given=step)
    assert (replica.step, replica.digest) == (2, digest)


def test_a_gradient_of_another_size_is_refused_and_changes_nothing(make, layout):
    replica = make()
    with refused_as(BYTE_COUNT, bytes=128, expected=132):
        replica.apply(1, gradient(1, layout)[:-1])
    assert replica.step == 0


def test_the_good_copy_is_never_changed(make, layout):
    replica = make()
    for step in range(1, 6):
        views = replica.sections()
        before = {name: array.tobytes() for name, array in views.items()}
        replica.apply(step, gradient(step, layout))
        assert {name: array.tobytes() for name, array in views.items()} == before


def test_committed_parameters_cannot_be_written_through_the_view(make):
    with pytest.raises(ValueError, match="read-only"):
        make().parameters()[0] = 1.0


def test_gradients_come_as_bytes_read_only_arrays_or_at_odd_addresses(make, layout, path):
    digests = set()
    exact = gradient(1, layout)
    frozen = exact.copy()
    frozen.flags.writeable = False
    odd = np.frombuffer(b"x" + exact.tobytes(), np.uint8)[1:]
    for form in (exact, exact.view(np.uint8), exact.tobytes(), frozen, odd, memoryview(exact)):
        replica = make()
        replica.apply(1, form)
        digests.add(replica.digest)
        replica.close()
        path.unlink()
    assert len(digests) == 1


def test_what_a_killed_creation_left_is_no_replica_and_in_nobodys_way(make, path):
    half = path.with_name(".state.creating")
    half.write_bytes(b"half")
    with refused_as(CANNOT_OPEN, kind=RingError, error=re.compile("No such file")):
        Replica.open(path, ADAM)
    assert make().step == 0
    assert not half.exists()


def test_a_second_owner_is_refused(make, path):
    make()
    with refused_as(OPEN_ELSEWHERE):
        Replica.open(path, ADAM)


def test_a_replica_is_never_made_over_another(make):
    make()
    with refused_as(ALREADY_HERE):
        make()


def test_other_optimizer_settings_are_refused(make, path):
    make().close()
    for other in (
        OptimizerConfig(name="adam", learning_rate=2e-2),
        OptimizerConfig(name="adam", learning_rate=1e-2, amsgrad=True),
    ):
        with refused_as(OTHER_OPTIMIZER_THAN):
            Replica.open(path, other)


def test_a_torn_commit_leaves_the_step_before_it_whole(make, path, layout):
    replica = make()
    replica.apply(1, gradient(1, layout))
    before = replica.digest, replica.parameters().tobytes()
    replica.apply(2, gradient(2, layout))
    replica.close()
    newest = max(SLOTS, key=lambda at: int.from_bytes(path.read_bytes()[at : at + 8], "little"))
    overwrite(path, newest + 20, b"\xff\xff")
    overwrite(path, IN_STEP, (2).to_bytes(8, "little"))
    again = Replica.open(path, ADAM)
    assert (again.step, again.interrupted_step) == (1, 2)
    assert (again.digest, again.parameters().tobytes()) == before
    again.close()


def test_two_torn_commits_are_no_replica(make, path):
    make().close()
    for at in SLOTS:
        overwrite(path, at + 20, b"\xff\xff")
    with refused_as(NO_WHOLE_STEP):
        Replica.open(path, ADAM)


def test_a_changed_byte_is_found_when_the_file_is_opened(make, path):
    replica = make()
    size = path.stat().st_size
    replica.close()
    raw = bytearray(path.read_bytes())
    at = raw.index(np.float32(-1).tobytes(), HEADER_BYTES)
    assert at < size
    overwrite(path, at, b"\x01")
    with refused_as(BYTES_CHANGED):
        Replica.open(path, ADAM)
    Replica.open(path, ADAM, verify=False).close()


@pytest.mark.parametrize(
    ("offset", "raw", "wanted"),
    [
        (0, b"NOTOURS!", OTHER_KIND),
        (8, (99).to_bytes(4, "little"), like(OTHER_VERSION, version=99)),
        (HEADER_BYTES + 3, b"\0", HEADER_DAMAGED),
        (40, (5).to_bytes(8, "little"), like(CUT_OFF, expected=5)),
    ],
)
def test_a_file_that_is_not_ours_is_refused_in_a_sentence(make, path, offset, raw, wanted):
    make().close()
    overwrite(path, offset, raw)
    with refused_as(wanted, kind=RingError):
        Replica.open(path, ADAM)


def test_a_cut_an_empty_or_a_missing_file_is_refused(make, path, tmp_path):
    make().close()
    os.truncate(path, path.stat().st_size - 4096)
    with refused_as(CUT_OFF, kind=RingError):
        Replica.open(path, ADAM)
    os.truncate(path, 0)
    with refused_as(TOO_SHORT, kind=RingError, bytes=0):
        Replica.open(path, ADAM)
    with refused_as(TOO_SHORT, kind=RingError, bytes=0):
        peek_commit(path)
    with refused_as(CANNOT_OPEN, kind=RingError):
        Replica.open(tmp_path / "nothing", ADAM)


def test_weights_of_another_size_make_no_file(layout, path):
    with refused_as(BYTE_COUNT, what="weights", bytes=8):
        Replica.create(path, layout, ADAM, b"12345678")
    assert not path.exists()


def test_an_observer_sees_the_step_without_owning_the_replica(make, path, layout):
    replica = make()
    replica.apply(1, gradient(1, layout))
    commit, in_step = peek_commit(path)
    assert (commit.step, commit.digest.hex(), in_step) == (1, replica.digest, 0)


def test_a_closed_replica_says_so(make, layout):
    replica = make()
    replica.close()
    with refused_as(CLOSED):
        replica.apply(1, gradient(1, layout))
