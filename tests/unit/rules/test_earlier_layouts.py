"""Nothing that is known of an optimizer changed, and replicas of an earlier version go on: held
against what that version said of every optimizer and setting, and against its own state files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import optimizer_facts

from flowcheck.config import OptimizerConfig
from flowcheck.replica.model_replica import Replica

LOOP, FUSED = "kernel of cuda loop", "kernel of cuda fused"
CHANGED = {
    # An empty name is none: the job file says which there are.
    "": {"job file", "layout"},
    "factory of own": {"rests on 0"},  # a class derived from SGD may take roots of its own
    # Its row has its keys, so that a job file is refused before torch is asked, in other words.
    "adagrad": {"job file", "preflight", "layout", "writes gradient"},
    "adafactor": {"writes gradient"},
    # What C is told of CUDA's kernels, since they were measured on a GPU.
    "adam": {LOOP, FUSED},
    "adamw": {LOOP},
    "each of muon+adamw": {LOOP},
    "factory of adam": {LOOP},
    "factory of adamw": {LOOP},
    "factory of sgd+adamw": {LOOP},
    "sgd": {FUSED, f"{FUSED} in doubles"},
}
"""What is said otherwise since, by optimizer; the sections of the state file never are."""
RECORDED = Path(__file__).resolve().parents[2] / "data/optimizers"


def refused(told: Any) -> Any:
    """What was told, or of an error its kind, setting and value: its reason, a sentence when it was
    recorded, is a code now."""
    if isinstance(told, str) and (error := re.match(r"\w+Error: [\w.-]+ = .*?: ", told)):
        return error.group()
    return told


def each_kernel(row: dict[str, Any]) -> dict[str, Any]:
    """What is said of a kernel, by the arithmetic that it is said of."""
    found: dict[str, Any] = {}
    for key, told in row.items():
        if key.startswith("kernel") and isinstance(told, dict):
            found |= {f"kernel of {arithmetic}": own for arithmetic, own in told.items()}
        else:
            found[key] = told
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(gzip.decompress((RECORDED / "facts.json.gz").read_bytes()))
    if tree["torch"] != torch.__version__:
        pytest.skip(f"recorded with torch {tree['torch']}, whose states and sentences they are")
    return tree


@pytest.mark.slow
def test_every_optimizer_and_setting_is_what_it_was(recorded: dict[str, Any]) -> None:
    before = optimizer_facts.unpacked(recorded)
    now = optimizer_facts.unpacked(optimizer_facts.packed(optimizer_facts.facts()))
    assert now.keys() == before.keys()
    differs: dict[str, set[str]] = {}
    for key, told in now.items():
        row, earlier = each_kernel(told), each_kernel(before[key])
        others = {w for w in row | earlier if refused(row.get(w)) != refused(earlier.get(w))}
        if others:
            differs.setdefault(key.partition(":")[0], set()).update(others)
    assert differs == CHANGED
    assert not any(what.startswith("sections") for others in differs.values() for what in others)


def test_the_state_file_of_each_class_is_bit_for_bit_the_same(
    recorded: dict[str, Any], tmp_path: Path
) -> None:
    assert optimizer_facts.begun_files(tmp_path) == recorded["begun"]


@pytest.mark.parametrize("key", optimizer_facts.FILES)
def test_a_replica_of_an_earlier_version_goes_on_as_torch_does(key: str, tmp_path: Path) -> None:
    name, more = optimizer_facts.FILES[key]
    path = tmp_path / key
    path.write_bytes(gzip.decompress((RECORDED / f"{key}.state.gz").read_bytes()))
    path.chmod(0o600)
    replica = Replica.open(path, OptimizerConfig(name=name, learning_rate=0.1, **more))
    assert replica.step == optimizer_facts.FILE_STEPS
    shapes = optimizer_facts.MATRICES
    sizes = [int(np.prod(shape)) for shape in shapes]

    def parts(flat: np.ndarray) -> list[torch.Tensor]:
        return [
            torch.from_numpy(part.copy()).view(shape)
            for part, shape in zip(np.split(flat, np.cumsum(sizes)[:-1]), shapes, strict=True)
        ]

    leaves = [torch.nn.Parameter(part) for part in parts(replica.parameters())]
    keys = {key: value for key, value in more.items() if key != "arguments"}
    arguments = {**keys, **more.get("arguments", {}), "foreach": False}
    theirs = optimizer_facts.CLASSES[name](leaves, lr=0.1, **arguments)
    for leaf, held in zip(leaves, replica.states(), strict=True):
        copies = {name: own.value for name, own in held.items()}
        theirs.state[leaf] = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in copies.items()
        }
    generator = torch.Generator().manual_seed(12)
    for step in range(replica.step + 1, replica.step + 5):
        gradient = torch.randn(sum(sizes), generator=generator).numpy()
        for leaf, part in zip(leaves, parts(gradient), strict=True):
            leaf.grad = part
        theirs.step()
        replica.apply(step, gradient)
        assert replica.parameters().tobytes() == b"".join(
            p.detach().numpy().tobytes() for p in leaves
        )
        for leaf, held in zip(leaves, replica.states(), strict=True):
            assert held.keys() == theirs.state[leaf].keys()
            for name, own in held.items():
                assert torch.equal(
                    torch.as_tensor(own.value), torch.as_tensor(theirs.state[leaf][name])
                )
    replica.close()
