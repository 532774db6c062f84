"""A recorded job as Megatron-LM's plain wrapper sends it: weights in bfloat16 that nobody
broadcasts, gradients in float32, float32 masters; judged by the trainers' own account."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support import preloaded

from flowcheck.findings.catalog.hybrid_jobs import START_AS_STATED
from flowcheck.findings.catalog.job_learning import SAME_TYPE
from flowcheck.lab.job_run.digest_comparison import trainer_digests

TESTS = Path(__file__).resolve().parents[1]
DATA = TESTS / "data" / "own"
CAPTURE = DATA / "plain-wrapper-ll.pcap"
FACTORY = f"{TESTS / 'lab' / 'scripts' / 'plain_wrapper.py'}:make"
NAMES = [f"{layer}.{kind}" for layer in (0, 1, 3, 5) for kind in ("weight", "bias")]
LAST = 4


def replayed(folder: Path, model: str) -> dict[str, Any]:
    job = folder / "job.toml"
    job.write_text(
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.05\nmomentum = 0.9\n'
        f'master_dtype = "float32"\n[model]\nfactory = "{FACTORY}"\n{model}'
    )
    words = ["replay", str(CAPTURE), "--job", str(job), "--digests", "--json", "--source", "file"]
    done = preloaded.run(
        [*words, "--out", str(folder / "out")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_weights_momentum_and_masters_are_the_trainers_bit_for_bit(tmp_path: Path) -> None:
    told = replayed(tmp_path, 'seed = 5\ngradient_dtype = "float32"\n')
    found = {
        line["step"]: {"parameters": line["parameters_sha256"], **line["states_sha256"]}
        for line in told["digests"]
    }
    assert set(found) == {1, 2, 3, LAST}
    assert found == trainer_digests(DATA / "plain-wrapper-ll.jsonl")
    masters = load_file(tmp_path / "out" / f"step-{LAST}" / "masters.safetensors")
    whole = b"".join(masters[name].numpy().tobytes() for name in NAMES)
    wanted = (DATA / "plain-wrapper-ll.masters").read_text().strip()
    assert hashlib.sha256(whole).hexdigest() == wanted
    codes = {one["code"] for one in told["assumed"]}
    assert START_AS_STATED.code in codes and SAME_TYPE.code not in codes


@pytest.mark.nightly
def test_without_the_seed_nothing_tells_the_weights(tmp_path: Path) -> None:
    told = replayed(tmp_path, 'gradient_dtype = "float32"\n')
    assert not told["digests"] and told["why"] is not None
