"""A replica there is no room for is refused with the sum."""

import os
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.refused_as import refused_as

from flowcheck.config import GradientLogConfig, OptimizerConfig, ReplicaConfig
from flowcheck.findings.catalog.replica_state_errors import (
    AND_MEMORY,
    MORE_HUGE_PAGES,
    NO_ROOM_FOR_IT,
)
from flowcheck.plane.shared_memory.shared_memory_location import huge_bytes_free
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file import free_space
from flowcheck.replica.state_file.file_header import Commit, Description, Section
from flowcheck.replica.state_file.free_space import FreeSpace, check_space, free_space_of
from flowcheck.replica.state_file.state_file import StateFile, place_sections
from flowcheck.stages.replica_update import replica_creation


def test_a_state_that_does_not_fit_is_refused_before_a_byte_is_taken_with_the_sum(tmp_path):
    elements = 1 << 46
    description = Description(
        Layout.of_shapes([(elements,)]), place_sections([Section("parameters", "<f4", elements, 0)])
    )
    commit = Commit(1, 0, 0, False, bytes(16), bytes(16))
    with refused_as(
        NO_ROOM_FOR_IT, account=re.compile(f"3 steps of {4 * elements:,} bytes")
    ) as refused:
        StateFile.create(tmp_path / "state", description, {}, commit, copies=3)
    free = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert refused.value.finding.arguments["free"] <= free
    assert list(tmp_path.iterdir()) == []


def test_what_lies_in_memory_must_fit_into_the_machines_own():
    with refused_as(AND_MEMORY, bytes=5):
        check_space(Path("/dev/shm"), 10, "two steps", FreeSpace(1000, 5))
    check_space(Path("/srv"), 10, "two steps", FreeSpace(1000, None))
    assert free_space_of(Path("/proc")).memory is None


def test_a_hugetlbfs_without_a_size_has_the_pages_of_its_own_that_nobody_has(tmp_path, monkeypatch):
    page = 1 << 30  # not the machine's default size
    sizes = {"hugepages-1048576kB": (7, 3), "hugepages-2048kB": (900, 0)}
    for name, counts in sizes.items():
        (tmp_path / name).mkdir()
        for kind, count in zip(("free", "resv"), counts, strict=True):
            (tmp_path / name / f"{kind}_hugepages").write_text(f"{count}\n")
    told = SimpleNamespace(f_blocks=0, f_bavail=0, f_bsize=page, f_frsize=page)
    monkeypatch.setattr(free_space.os, "statvfs", lambda folder: told)
    monkeypatch.setattr(free_space, "_kind", lambda folder: "hugetlbfs")
    ours = partial(huge_bytes_free, sizes=tmp_path)
    monkeypatch.setattr(free_space, "huge_bytes_free", ours)
    found = free_space.free_space_of(Path("/dev/hugepages"))
    assert found == FreeSpace(4 * page, None)
    check_space(Path("/dev/hugepages"), 4 * page, "two steps", found)
    with refused_as(MORE_HUGE_PAGES):
        check_space(Path("/dev/hugepages"), 4 * page + 1, "two steps", found)
    told.f_blocks, told.f_bavail = 9, 2  # mounted with size=
    assert free_space.free_space_of(Path("/dev/hugepages")).file_system == 2 * page
    assert huge_bytes_free(16 << 10, tmp_path) == 0  # a size that the kernel does not have


@pytest.mark.parametrize(
    ("memory", "keep_bytes", "taken_steps", "account"),
    [
        (
            2600,
            0,
            0,
            re.compile(r"a copy of a step that is saved, 1,\d+ bytes, and a copy .* served"),
        ),
        (10**6, 0, 0, None),
        (10**5, 0, 50, re.compile("of gradients of applied steps")),
        (5200, 2600, 0, None),  # a step to spare is read in place
    ],
)
def test_a_learned_job_must_fit_with_its_readers_and_logs(
    tmp_path, monkeypatch, memory, keep_bytes, taken_steps, account
):
    monkeypatch.setattr(replica_creation, "free_space_of", lambda folder: FreeSpace(10**7, memory))
    settings = SimpleNamespace(
        replica=ReplicaConfig(keep_bytes=keep_bytes),
        gradient_log=GradientLogConfig(taken_steps=taken_steps),
        copies=None,
        persist=object(),
        serve=object(),
    )
    run, job = SimpleNamespace(replica=tmp_path / "replica"), SimpleNamespace(gradient_bytes=400)
    layout = Layout.of_shapes([(100,)])  # 400 bytes, of AdamW's states twice as many
    rule = OptimizerConfig(name="adamw", learning_rate=0.1)

    def check() -> None:
        replica_creation.check_replica_memory(run, settings, job, layout, rule, leaves_out=False)

    if account is None:
        return check()
    with refused_as(NO_ROOM_FOR_IT, account=account):
        check()
