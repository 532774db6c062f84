"""A process that ends at any instant costs nothing but the step that was being applied."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BY_DAY = [("plain", 6), ("mixed", 5), ("several", 5)]
BY_NIGHT = [("plain", 50), ("mixed", 30), ("several", 20)]

HARNESS = '''
"""Forks a child that applies steps, ends it at a random instant, opens what is left; again."""
import json, os, random, signal, sys
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerPartConfig, OptimizerConfig
from flowcheck.config.optimizer_config import AverageConfig, ScalerConfig
from flowcheck.replica.state_file.file_header import peek_commit
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.model_replica import Replica

torch.set_num_threads(1)  # a forked child has no OpenMP workers
folder, kills = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(1)
layout = Layout.of_shapes([(500, 300), (77,), (90_001,)])
gradients = [rng.standard_normal(layout.elements).astype(np.float32) for _ in range(5)]
weights = rng.standard_normal(layout.elements).astype(np.float32)
config = OptimizerConfig(name="adamw", learning_rate=1e-3, amsgrad=True)
if sys.argv[3] == "mixed":  # bfloat16 with masters, a loss scale that skips, averages
    layout = Layout.of_shapes([(500, 300), (77,), (30_001,)], dtype="bfloat16")
    gradients[1][0] = np.inf
    halves = [g.view(np.uint16)[1 : 2 * layout.elements : 2].copy() for g in (*gradients, weights)]
    *gradients, weights = halves
    config = OptimizerConfig(
        name="adamw",
        learning_rate=1e-3,
        schedule="OneCycleLR",
        schedule_arguments={"max_lr": 1e-2, "total_steps": 10**6},
        schedule_when_skipped=False,
        master_dtype="float32",
        scaler=ScalerConfig(init_scale=64.0, growth_interval=3),
        average=AverageConfig(decay=0.9),
    )

if sys.argv[3] == "several":  # Muon's products take long
    layout = Layout.of_shapes([(60, 40), (77,), (30_001,)])
    *gradients, weights = (each[: layout.elements].copy() for each in (*gradients, weights))
    config = OptimizerConfig(
        clip_norm=1.0,
        each=(
            OptimizerPartConfig(
                name="muon",
                parameters=("ndim=2",),
                learning_rate=1e-2,
                schedule="CosineAnnealingLR",
                schedule_arguments={"T_max": 10**4},
            ),
            OptimizerPartConfig(name="adamw", parameters="rest", learning_rate=1e-3),
        ),
    )


def run_to(replica, last):
    while last is None or replica.step < last:
        started = replica.begin(replica.step + 1, gradients[replica.step % 5])
        if replica.step % 2:
            started.apply([2])
            started.apply([0])
        started.commit()


def dump(replica):
    return {name: array.tobytes() for name, array in replica.sections().items()}


killed = folder / "killed"
first = Replica.create(killed, layout, config, weights)
first.prepare()  # so that children that are killed soon need not
first.close()
dice = random.Random(7)
report = {"inside": 0, "steps": [0], "interrupted": 0}
stretch = 1.0  # cold caches of a busy machine make a step cost more of a processor's time
for _ in range(kills):
    after_s = dice.uniform(0.001, 0.04) * stretch
    child = os.fork()
    if child == 0:
        replica = Replica.open(killed, config)
        # Nobody handles it, so that it ends the process there and then; after so much of its own
        # processor time, however busy the machine is.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, after_s)
        run_to(replica, None)
    assert os.waitpid(child, 0)[1] == signal.SIGPROF
    commit, in_step = peek_commit(killed)
    report["inside"] += in_step == commit.step + 1
    replica = Replica.open(killed, config)  # checks the digest of all bytes
    assert replica.step == commit.step
    report["interrupted"] += replica.interrupted_step == replica.step + 1
    report["steps"].append(replica.step)
    stretch *= 1.5 if replica.step == 0 else 1.0
    replica.close()

last = report["steps"][-1] + 3
replica = Replica.open(killed, config)
run_to(replica, last)
undisturbed = Replica.create(folder / "undisturbed", layout, config, weights)
run_to(undisturbed, last)
report["same"] = dump(replica) == dump(undisturbed) and replica.digest == undisturbed.digest
print(json.dumps(report))
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "kills"),
    [*BY_DAY, *(pytest.param(*one, marks=pytest.mark.nightly) for one in BY_NIGHT)],
)
def test_a_replica_killed_again_and_again_ends_with_the_bytes_of_an_undisturbed_one(
    rule: str, kills: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HARNESS, str(tmp_path), str(kills), rule]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["same"]
    assert report["steps"] == sorted(report["steps"]), "a committed step was lost"
    assert report["steps"][-1] > 0
    assert report["inside"] >= kills // 5, "the kills must hit inside a step"
    assert report["interrupted"] == report["inside"]
