"""What the machines' reports come to: the newest step common to all shards, against every choice of
one chain for each; several shards in one folder; and the manifest for Kubernetes."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import fleet_running as told
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, decode_fleet, encode_fleet
from flowcheck.fleet.node_report import ChainReport, NodeReport, newest_common_step
from flowcheck.ops.fleet import fleet_restore_command as verb
from flowcheck.ops.fleet.fleet_status_command import view_of
from flowcheck.ops.fleet.ray_cluster import RESOURCE
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.step_numbers import Step


def chain(name: str, of: str | None, pid: int | None, exact: tuple[int, ...]) -> ChainReport:
    rest = {"run": "", "kept": True, "starts": 1, "earlier": False, "health": "exact"}
    rest |= {"reason": None, "step": max(exact, default=None), "digest": "", "saved": None}
    return ChainReport(name=name, of=of, pid=pid, exact=exact, served="http://liar:1", **rest)  # type: ignore[arg-type]


def fleet(shards: int) -> FleetState:
    chains = []
    for at in range(shards):
        for name, node, of in ((f"s{at}", "a", None), (f"s{at}.b", "b", f"s{at}")):
            url = f"http://127.0.0.1:{8000 + len(chains)}"
            chains.append(
                FleetChain(
                    name=name, node=node, of=of, job=f"key = {name!r}\nepoch = 4\n", run="/x",
                    served=url, copied=None,
                )
            )  # fmt: skip
    keepers = {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"}
    return FleetState(
        name="t", generation=4, wanted=True, folder="/", state="/s", keepers=keepers,
        chains=tuple(chains),
    )  # fmt: skip


STEPS = st.frozensets(st.integers(0, 6), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(STEPS, STEPS, st.booleans()), min_size=1, max_size=3))
def test_the_common_step_is_one_that_a_living_chain_of_each_shard_has(
    given_steps: list[tuple[frozenset[int], frozenset[int], bool]],
) -> None:
    shards = {
        f"s{at}": [
            chain(f"s{at}", None, 7 if lives else None, tuple(sorted(first))),
            chain(f"s{at}.b", f"s{at}", 8, tuple(sorted(copy))),
        ]
        for at, (first, copy, lives) in enumerate(given_steps)
    }
    each = [([first] if lives else []) + [copy] for first, copy, lives in given_steps]
    choices = (frozenset.intersection(*choice) for choice in itertools.product(*each))
    found = frozenset[int]().union(*choices)
    assert newest_common_step(shards) == max(found, default=None)


def test_each_machine_gets_the_text_of_its_own_chains_alone() -> None:
    state = fleet(2)
    for node in ("a", "b"):
        own = decode_fleet(encode_fleet(state.for_node(node)))
        assert own.stated_digest == state.stated_digest
        for one, whole in zip(own.chains, state.chains, strict=True):
            assert (one.job == whole.job) is (one.node == node)
            assert node == one.node or one.name.encode() not in one.job.encode()
    text = encode_fleet(state).replace(b"epoch = 4", b"epoch = 5")
    assert decode_fleet(text).stated_digest == state.stated_digest
    text = encode_fleet(state).replace(b"key = ", b"other = ", 1)
    assert decode_fleet(text).stated_digest != state.stated_digest


def test_a_chain_that_the_file_does_not_have_is_no_shard() -> None:
    report = NodeReport(
        fleet="t", node="a", generation=4, wanted=True, stated="", newer=None, places={},
        chains=(chain("s0", None, 1, (3,)), chain("gone", None, 1, (9,))),
    )  # fmt: skip
    view = view_of(fleet(1), {"a": report, "b": told.KEEPER_SILENT(node="b", seconds=5)})
    assert list(view.shards) == ["s0"] and view.common_step == 3 and not view.is_whole


class Restored:
    """In place of restore_command.restore: writes where it is asked to, or refuses."""

    def __init__(self, refuses: frozenset[str] = frozenset()) -> None:
        self.refuses, self.asked = refuses, list[str]()

    def __call__(self, request: RestoreRequest) -> list[Any]:
        url = str(request.source.url)
        self.asked.append(url)
        if url in self.refuses:
            raise StateError(told.STATE_MISSING())
        request.output.write_text(f"{url} {request.source.step}")
        return [SimpleNamespace(written=SimpleNamespace(step=request.source.step))]


def given_all(state: FleetState, out: Path, *exact: tuple[int, ...]) -> list[verb.Given]:
    shards = {
        f"s{at}": [chain(f"s{at}.b", f"s{at}", 2, steps), chain(f"s{at}", None, 1, steps)]
        for at, steps in enumerate(exact)
    }
    request = RestoreRequest(source=StepSource(), output=out, form="torch")
    return verb._all_given(state, shards, request, Step(3))


def test_several_shards_come_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, out = fleet(2), tmp_path / "out"
    first = Restored(frozenset({state.chains[0].served}))
    monkeypatch.setattr(verb.restore_command, "restore", first)
    done = given_all(state, out, (2, 3), (3,))
    assert [(one.shard, one.chain, one.step) for one in done] == [
        ("s0", "s0.b", 3),
        ("s1", "s1", 3),
    ]
    assert first.asked == [state.chains[at].served for at in (0, 1, 2)], "never what a report says"
    assert {path.name for path in out.iterdir()} == {"s0", "s1"}
    with refused_as(told.OUT_EXISTS, kind=ConfigError):
        given_all(state, out, (3,), (3,))

    refuses = Restored(frozenset(own.served for own in state.chains if own.shard == "s1"))
    monkeypatch.setattr(verb.restore_command, "restore", refuses)
    with refused_as(told.STATE_MISSING):
        given_all(state, tmp_path / "half", (3,), (3,))
    with refused_as(told.STEP_NOWHERE):
        given_all(state, tmp_path / "half", (3,), (2,))
    assert not list(tmp_path.glob("*half*"))


def test_the_manifest_has_a_worker_group_with_its_resource_for_each_machine() -> None:
    yaml = pytest.importorskip("yaml")
    file = Path(verb.__file__).parents[2] / "fleet" / "kuberay" / "raycluster.yaml"
    made = yaml.safe_load(file.read_text())["spec"]
    assert made["authOptions"]["mode"] == "token"
    for group in made["workerGroupSpecs"]:
        assert group["resources"] == {f"{RESOURCE}{group['groupName']}": "1"}
        assert {group[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {1}
        pod = group["template"]["spec"]
        assert pod["nodeSelector"] == {"kubernetes.io/hostname": group["groupName"]}
        mounts = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
        assert mounts == {one["name"] for one in pod["volumes"]}
