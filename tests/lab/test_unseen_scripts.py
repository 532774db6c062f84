"""Training scripts nobody tuned anything for: followed bit for bit, or refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import preloaded
from support.standing import standing
from support.started import SCRIPTS, launch

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.lab.recording.packet_tap import PacketTap

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
SGD = 'name = "sgd"\nlearning_rate = 0.05\n'
MOMENTUM = SGD + "momentum = 0.9\n"
ADAMW = 'name = "adamw"\nlearning_rate = 0.01\n'
LIMIT_S = 120


@dataclass(frozen=True)
class Outcome:
    """What became of one script."""

    trainer: dict[int, Digests]
    replica: dict[int, Digests]
    why: str
    """Why the chain took no more steps; empty: it took all there were."""

    def check(self) -> None:
        """No step of the replica's is another than the trainer's, and an end has its reason."""
        for step, found in self.replica.items():
            assert found == self.trainer.get(step), f"step {step} was followed wrongly"
        assert self.why or len(self.replica) == len(self.trainer)


@pytest.fixture(scope="module")
def hosts() -> Iterator[cluster.Cluster]:
    with standing(cluster.Cluster(name=f"u{os.getpid()}", network=201)) as made:
        yield made


def replay(capture: Path, optimizer: str, more: str = "", *options: str) -> dict[str, Any]:
    """What `flowcheck replay` says of it. optimizer: empty where the job file states none."""
    job = capture.with_suffix(".toml")
    job.write_text((f"[optimizer]\n{optimizer}\n" if optimizer else "") + more)
    command = ["replay", str(capture), "--job", str(job)]
    done = preloaded.run(
        [*command, "--digests", "--json", "--source", "file", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if not done.stdout:
        assert done.returncode != 0
        return {
            "digests": [],
            "lost": None,
            "why": {"sentence": done.stderr.strip()},
            "assumed": [],
        }
    told: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (not told["why"] and not told["lost"])
    return told


def run(
    hosts: cluster.Cluster, folder: Path, optimizer: str, *words: str, more: str = ""
) -> Outcome:
    """A script (its name, then its arguments) recorded at the mirror port, then replayed."""
    capture, digests = folder / "job.pcapng", folder / "digests.jsonl"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment=words[0]):
        launch(hosts, words[0], str(digests), *words[1:])
    told = replay(capture, optimizer, more)
    replica = {
        line["step"]: {"parameters": line["parameters_sha256"], **line.get("states_sha256", {})}
        for line in told["digests"]
    }
    why = told["lost"]["why"] if told["lost"] else told["why"]
    outcome = Outcome(
        trainer_digests(digests), replica, why and f"{why['sentence']} {why.get('remedy', '')}"
    )
    outcome.check()
    return outcome


ALL, SOME, NONE = "every step", "the first steps", "no step"
QUICK = [
    ("cnn_batchnorm.py", MOMENTUM, ALL, ""),
]
OTHERS = [
    ("variants.py view", ADAMW, ALL, ""),
    ("cnn_batchnorm.py mixed unused", SGD, NONE, "find_unused_parameters=True"),
    ("several_dtypes.py float64", ADAMW, ALL, ""),
    ("several_dtypes.py float64 static", ADAMW, ALL, ""),
    ("several_dtypes.py float64 unused", ADAMW, NONE, "State the model: [model] factory"),
    ("several_dtypes.py float16,bfloat16,alone", ADAMW, NONE, "State the model: [model] factory"),
    ("cnn_batchnorm.py unused", MOMENTUM, ALL, ""),
    ("cnn_batchnorm.py mixed", MOMENTUM, NONE, 'dtypes = ["bfloat16", "float32"]'),
    ("unused_branch.py", ADAMW, ALL, ""),
    ("unused_branch.py late", MOMENTUM + "dampening = 0.3\n", ALL, ""),
    ("unused_branch.py never", ADAMW, ALL, ""),
    ("unused_branch.py static", ADAMW, ALL, ""),
    ("several_dtypes.py bfloat16", ADAMW, NONE, 'dtypes = ["bfloat16", "float32"]'),
    ("variants.py fp16", ADAMW, NONE, 'State `gradient_dtype` in `[model]`: "float16"'),
    ("variants.py static", ADAMW, ALL, ""),
    ("variants.py unused", ADAMW, ALL, ""),
    ("variants.py tied", ADAMW, ALL, ""),
    ("variants.py frozen", ADAMW, NONE, "frozen parameters"),
    ("variants.py frozen-last", ADAMW, NONE, "frozen parameters"),
    ("variants.py frozen-scalar", ADAMW, NONE, "frozen parameters"),
    ("variants.py frozen-scalar NCCL_PROTO=Simple", ADAMW, NONE, "frozen parameters"),
    ("variants.py no-sync", ADAMW, ALL, ""),
    ("variants.py bfloat16", ADAMW, NONE, 'State in `[model]`: `dtype = "bfloat16"`'),
    ("variants.py twin", ADAMW, NONE, "as large as one of the buckets"),
    ("variants.py gloo", ADAMW, NONE, "no RDMA write was seen"),
    ("two_models.py", SGD, NONE, "a second model was wrapped"),
    ("own_statistics.py", SGD, ALL, ""),
    ("options.py syncbn", SGD, ALL, ""),
    ("options.py checkpoint", SGD, ALL, ""),
    ("options.py checkpoint-reentrant", SGD, ALL, ""),
    ("options.py compile", SGD, ALL, ""),
    ("options.py compile-inner", SGD, ALL, ""),
    ("options.py python-reducer", SGD, NONE, "optimize_ddp='python_reducer'"),
    ("options.py join", SGD, ALL, ""),
    ("options.py join-context", SGD, ALL, ""),
    ("options.py mesh", SGD, ALL, ""),
    ("options.py early", SGD, ALL, ""),
    ("options.py early NCCL_PROTO=Simple", SGD, ALL, ""),
    ("options.py objects", SGD, ALL, ""),
    ("options.py averages", SGD, ALL, ""),
    ("options.py sum-hook", SGD, ALL, ""),
    ("options.py zero", SGD, ALL, ""),
    ("options.py zero NCCL_PROTO=Simple", SGD, ALL, ""),
    ("options.py delayed", SGD, NONE, "delay_all_reduce_named_params"),
    ("options.py power-sgd", SGD, NONE, "PowerSGD of rank 1"),
    ("options.py local-sgd caps", SGD, NONE, "averages models"),
    ("options.py local-sgd", SGD, SOME, "holds the parameters, not their gradient"),
    ("options.py manual", SGD, NONE, "DDP's start-up messages were not seen"),
    ("options.py no-init-sync", SGD, NONE, "init_sync=False"),
    ("tiny.py one", SGD, NONE, "nothing tells a model of it"),
    ("tiny.py two", SGD, NONE, "nothing tells a model of it"),
    ("tiny.py numbers", SGD, NONE, "nothing tells a model of it"),
]
FP16, BF16 = 'gradient_dtype = "float16"\n', 'gradient_dtype = "bfloat16"\n'
FACTORY = 'factory = "{script}:make"\nfactory_arguments = {{ others = "{way}" }}\n'
STATED = [
    ("variants.py fp16", ADAMW, FP16),
    ("variants.py bf16", ADAMW, BF16),
    ("variants.py bfloat16", ADAMW, 'dtype = "bfloat16"'),
    ("variants.py unused fp16", ADAMW, FP16),
    ("variants.py unused bf16 NCCL_PROTO=Simple", ADAMW, BF16),
    ("variants.py static bf16", ADAMW, BF16),
    ("several_dtypes.py bfloat16", ADAMW, 'dtypes = ["bfloat16", "float32"]'),
    ("several_dtypes.py float16", ADAMW, 'dtypes = ["float16", "float32"]'),
    ("several_dtypes.py bfloat16 static", ADAMW, 'dtypes = ["bfloat16", "float32"]'),
    ("cnn_batchnorm.py mixed", MOMENTUM, 'dtypes = ["bfloat16", "float32"]'),
    ("several_dtypes.py bfloat16 unused", ADAMW, FACTORY),
    ("several_dtypes.py bfloat16 unused NCCL_PROTO=Simple", ADAMW, FACTORY),
    ("several_dtypes.py bfloat16 unused fp16", ADAMW, FACTORY + FP16),
    ("several_dtypes.py bfloat16 static bf16", ADAMW, FACTORY + BF16),
    ("several_dtypes.py float16,bfloat16", ADAMW, FACTORY),
    ("several_dtypes.py float16,bfloat16,alone", ADAMW, FACTORY),
    ("several_dtypes.py float16,bfloat16,alone static NCCL_PROTO=Simple", ADAMW, FACTORY),
    (
        "several_dtypes.py float16,bfloat16 unused fp16",
        ADAMW,
        FACTORY + FP16,
    ),
]
"""Followed once the job file says what the wire does not."""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "optimizer", "steps", "reason"), QUICK)
def test_script_is_followed_exactly_or_refused_with_the_reason(
    hosts: cluster.Cluster, tmp_path: Path, words: str, optimizer: str, steps: str, reason: str
) -> None:
    outcome = run(hosts, tmp_path, optimizer, *words.split())
    assert len(outcome.trainer) >= 5 or words == "tiny.py numbers"
    if steps == ALL:
        assert outcome.replica == outcome.trainer and not outcome.why
    if steps == NONE:
        assert not outcome.replica and outcome.why
    if steps == SOME:
        assert outcome.replica and outcome.why
    assert reason in str(outcome.why or "")


@pytest.mark.nightly
@pytest.mark.parametrize(("words", "optimizer", "steps", "reason"), OTHERS)
def test_other_script_is_followed_exactly_or_refused_with_the_reason(
    hosts: cluster.Cluster, tmp_path: Path, words: str, optimizer: str, steps: str, reason: str
) -> None:
    test_script_is_followed_exactly_or_refused_with_the_reason(
        hosts, tmp_path, words, optimizer, steps, reason
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("words", "optimizer", "model"), STATED)
def test_script_is_followed_exactly_once_its_types_are_stated(
    hosts: cluster.Cluster, tmp_path: Path, words: str, optimizer: str, model: str
) -> None:
    script, way, *_ = words.split()
    model = model.format(script=SCRIPTS / script, way=way)
    outcome = run(hosts, tmp_path, optimizer, *words.split(), more=f"[model]\n{model}\n")
    assert len(outcome.trainer) >= 5
    assert outcome.replica == outcome.trainer and not outcome.why
