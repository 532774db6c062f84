"""A state file asks for 2 MiB pages, and its threads are the first to touch them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from flowcheck.replica.param_layout import Layout
from flowcheck.replica.worker_threads import WorkerThreads, owners, shares

HARNESS = '''
"""In a mount namespace of its own: a tmpfs which gives huge pages to those who ask."""
import json, os, re, signal, subprocess, sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
mounted = subprocess.run(
    ["mount", "-t", "tmpfs", "-o", "huge=advise,size=200m", "tmpfs", folder], capture_output=True
)
if mounted.returncode:
    print(json.dumps({"why": mounted.stderr.decode()}))
    sys.exit()

from flowcheck.config import OptimizerConfig
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.torch_without_compiler import load_torch
from flowcheck.replica.worker_threads import WorkerThreads

SMAPS = Path("/proc/self/smaps")
workers = WorkerThreads(2, tuple(sorted(os.sched_getaffinity(0)))[:2])
config = OptimizerConfig(name="adamw", learning_rate=1e-3)
layout = Layout.of_shapes([(1024, 1024), (1024,)] * 2 + [(77,)])
rng = np.random.default_rng(1)
weights, gradient = (rng.standard_normal(layout.elements).astype(np.float32) for _ in "wg")


def pages(path):
    """(bytes of the mapping, of them in 2 MiB pages), as the kernel counts them."""
    whole = huge = 0
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text(), flags=re.MULTILINE):
        if str(path) in part.splitlines()[0] if part else False:
            told = dict(re.findall(r"^(\\w+): +(\\d+) kB", part, re.MULTILINE))
            whole += int(told["Size"]) << 10
            huge += int(told["ShmemPmdMapped"]) << 10
    return whole, huge


def free_bytes():
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


load_torch()  # once for parent and child
path, before = folder / "state", free_bytes()
child = os.fork()
if child == 0:
    replica = Replica.create(path, layout, config, weights, workers=workers)
    (folder / "created").write_text(json.dumps(pages(path)))
    replica.apply(1, gradient)
    replica.apply(2, gradient)
    replica.begin(3, gradient).apply([0])
    os.kill(os.getpid(), signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
report = {"created": json.loads((folder / "created").read_text())}
report["file"], report["taken"] = path.stat().st_size, before - free_bytes()
again = Replica.open(path, config, workers=workers)  # checks the digest of all bytes
report["step"], report["interrupted"] = again.step, again.interrupted_step
again.apply(3, gradient)
report["opened"] = pages(path)
small = Replica.create(folder / "small", Layout.of_shapes([(9,)]), config, weights[:9])
report["small"] = (folder / "small").stat().st_blocks * 512
report["digest"] = again.digest
elsewhere = Replica.create(Path(sys.argv[2]) / "state", layout, config, weights)
for step in (1, 2, 3):
    elsewhere.apply(step, gradient)
report["undisturbed"] = elsewhere.digest
print(json.dumps(report))
'''


def test_where_a_tmpfs_gives_huge_pages_to_who_asks_a_state_has_them_and_outlives_a_kill(tmp_path):
    ours, other = tmp_path / "huge", tmp_path / "other"
    ours.mkdir()
    other.mkdir()
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", HARNESS]
    done = subprocess.run(
        [*command, str(ours), str(other)], capture_output=True, text=True, timeout=100, check=False
    )
    if "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"a mount namespace of one's own cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if "why" in told:
        pytest.skip(f"a tmpfs with huge=advise cannot be mounted here: {told['why'].strip()}")
    assert not any(ours.iterdir()), "the mount was seen outside its namespace"
    size, huge = told["created"]
    if huge == 0:
        pytest.skip("the kernel found no 2 MiB page for a file that asks for them")
    assert size == told["file"]
    assert huge > size / 2
    assert told["opened"][1] > size / 2
    assert told["taken"] < size + (1 << 20), "more memory was taken than the file has"
    assert told["small"] < 1 << 20, "a small state took a page of 2 MiB"
    assert (told["step"], told["interrupted"]) == (2, 3)
    assert told["digest"] == told["undisturbed"]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_element_is_of_one_thread_and_threads_have_about_as_much(threads):
    layout = Layout.of_shapes([(3000, 1000), (1000,), (3,)] * 8 + [(6_000_000,)])
    seen = np.zeros(layout.elements, np.int64)
    own = [0] * threads
    for thread, parts in enumerate(shares(layout, threads)):
        for first, count in parts:
            seen[first : first + count] += 1
            own[thread] += count
    assert (seen == 1).all()
    assert max(own) - min(own) <= 2 * (16 << 20) // 4


def test_small_tensors_stay_together_up_to_a_huge_page():
    found = owners([1 << 20] * 6 + [5 << 20, 4], 2)
    assert found.tolist() == [0, 0, 1, 1, 0, 0, 1, 0]


def test_each_thread_is_where_that_of_a_pool_is_pinned():
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    seen = {}
    workers = WorkerThreads(3, cpus)
    workers.each(lambda number: seen.__setitem__(number, os.sched_getaffinity(0)))
    assert seen == {n: {cpus[n % len(cpus)]} for n in range(3)}
    assert os.sched_getaffinity(0) == set(cpus)
