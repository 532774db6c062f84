"""What the machines' reports come to, and the manifest for Kubernetes."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flowcheck import __version__
from flowcheck.findings.catalog import fleet_running as told
from flowcheck.findings.finding import Entry, Finding
from flowcheck.fleet.common_step import Life
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, decode_fleet, encode_fleet
from flowcheck.fleet.node_report import ChainReport, NodeReport
from flowcheck.ops.fleet import fleet_restore_command as verb
from flowcheck.ops.fleet.fleet_status_command import view_of
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.ray_cluster import RESOURCE

LIFE = Life(number=1, origin=0)


def chain(name: str, of: str | None, pid: int | None, exact: tuple[int, ...]) -> ChainReport:
    rest = {"run": "", "kept": True, "starts": 1, "earlier": False, "health": "exact"}
    rest |= {"reason": None, "step": max(exact, default=None), "digest": "", "saved": None}
    rest |= {"digests": tuple("0" * 32 for _ in exact), "life": LIFE}
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


class Answers(BaseHTTPRequestHandler):
    """A keeper's port, at which something else answers."""

    text = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (b'{"release": "9.9", "node": "a", "lives": 1}', told.KEEPER_RELEASE),
        (b'{"release": "%s", "node": "a"}' % __version__.encode(), told.KEEPER_ANSWER),
        (b'{"release": 9}', told.KEEPER_ANSWER),
        (b"[]", told.KEEPER_ANSWER),
    ],
)
def test_a_keeper_of_another_release_is_named_as_that(text: bytes, entry: Entry) -> None:
    handler = type("Own", (Answers,), {"text": text})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_address[1]}"
        answer = KeeperClient(None, None).reports({"a": place})["a"]
        server.shutdown()
    assert isinstance(answer, Finding) and answer.is_any_of(entry)
    assert entry is not told.KEEPER_RELEASE or "9.9" in str(answer)


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
