"""Fixtures every room shares: the real captures, shared memory that is always removed."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import processor_time, side_by_side
from support.real_captures import captures_folder
from typer import testing

from flowcheck.findings.named_run import set_named_run
from flowcheck.stages.job_state.lifecycle_state_machines import STRICT_VARIABLE

os.environ.setdefault(STRICT_VARIABLE, "1")

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of torch's that wait for each other leave the processor, of which tests run one each."""

DRAWN = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""How long an example takes is the machine's business."""
settings.register_profile("suite", **DRAWN, derandomize=True)
settings.register_profile("night", **DRAWN, print_blob=True)
settings.load_profile("suite")
"""The suite tries the same examples each time; scripts/nightly draws others."""

if hasattr(testing, "_get_command"):
    testing._get_command = cache(testing._get_command)
"""The command line is built once, not before each command that a test gives it."""

gc.set_threshold(20_000, 10, 10)
"""Looking for garbage took a tenth of the processor time of tests, most of it for what never is."""

os.register_at_fork(after_in_child=gc.disable)
"""A forked child takes away nothing that its parent left: some of it waits for threads, which are
not there."""


def pytest_addoption(parser: pytest.Parser) -> None:
    processor_time.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(processor_time.ProcessorTime(config))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection looks through it again. torch, if it is among it,
    has its first calls behind it, which chance may round otherwise than all later ones."""
    if "torch" in sys.modules:
        from flowcheck.replica.torch_vector_math import settle_vector_math

        settle_vector_math()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Real captures with their truth; skips, with the reason, where they are missing."""
    folder = captures_folder()
    if folder is None:
        pytest.skip("no real captures: set FLOWCHECK_CAPTURES to the folder that holds captures/")
    return folder


@pytest.fixture(scope="session")
def captures(shared_folder: Path) -> Path:
    """The folder of real NCCL captures (*.pcapng) and rxe/."""
    return shared_folder / "captures"


@pytest.fixture(scope="session")
def truth(shared_folder: Path) -> Path:
    """The folder of truth files, one JSON per capture, and tensors/."""
    return shared_folder / "truth"


@pytest.fixture
def shm() -> Iterator[Path]:
    """An empty folder in /dev/shm, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=side_by_side.begins_late)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path.parent == side_by_side.LAB:
        side_by_side.own_shared_memory()


@pytest.fixture(autouse=True)
def no_run_is_named() -> Iterator[None]:
    """Which run a command of an earlier test was about is told by none of a later one."""
    yield
    set_named_run(None)
