"""The hook in a real trainer, judged by what the training script saved itself."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.hooked import TOKEN, saved, trained
from support.refused_as import refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.trainer_hook import HOOK_PROTOCOL, HOOK_REFUSES, HOOK_UNREACHABLE
from flowcheck.hook.protocol import AskedParameter, HookError, Request, read_exactly
from flowcheck.stages.healing.hook_client import ask_hook

pytestmark = pytest.mark.xdist_group("hook")
ASKED = (
    AskedParameter(0, ((0, 1),)),
    AskedParameter(1, ((0, 4), (50, 77))),
    AskedParameter(2, ((1, 2), (70, 130))),
    AskedParameter(5, ((0, 3),)),
)
"""Of the script's parameters scale, tall, conv.weight, conv.bias, head.weight and head.bias; tall
and conv.weight do not lie in index order."""


def in_memory_order(tensor: torch.Tensor) -> np.ndarray:
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    return tensor.permute(order).reshape(-1).numpy()


def wanted(folder: Path, step: int, asked: tuple[AskedParameter, ...]) -> list[dict[str, bytes]]:
    kept = saved(folder, step)
    found = []
    for one in asked:
        _, parameter = kept["parameters"][one.index]
        held = {"": parameter} | {
            key: value
            for key, value in kept["states"][one.index].items()
            if key != "step" and value is not None
        }
        found.append(
            {
                key: b"".join(in_memory_order(v)[a:b].tobytes() for a, b in one.ranges)
                for key, v in held.items()
            }
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("adamw", "module"),
        ("two", "variable"),
        pytest.param("accumulated", "variable", marks=pytest.mark.nightly),
        pytest.param("sgd", "module", marks=pytest.mark.nightly),
    ],
)
def test_values_are_those_of_the_step_that_they_say(kind: str, by: str, tmp_path: Path) -> None:
    with trained(tmp_path, kind, by=by) as port:
        for _ in range(5):
            answer = ask_hook("127.0.0.1", port, TOKEN, Request(ASKED, 20.0)).answer
            right = wanted(tmp_path, answer.steps, ASKED)
            assert [one.index for one in answer.parameters] == [one.index for one in ASKED]
            for one, own in zip(answer.parameters, right, strict=True):
                assert {"": one.value} | one.states == own, one.name
                assert one.own_step in (None, answer.steps)
        with refused_as(HOOK_REFUSES):
            ask_hook("127.0.0.1", port, TOKEN, Request((AskedParameter(6, ((0, 1),)),), 20.0))
        with refused_as(HOOK_REFUSES):
            ask_hook("127.0.0.1", port, TOKEN, Request((AskedParameter(0, ((0, 2),)),), 20.0))


@pytest.mark.slow
def test_hostile_clients_change_nothing(tmp_path: Path) -> None:
    calm, hooked = tmp_path / "calm", tmp_path / "hooked"
    for folder in (calm, hooked):
        folder.mkdir()
    with trained(calm, "adamw", by="nothing"):
        saved(calm, 100)
    with trained(hooked, "adamw", by="module") as port:
        held = []
        for raw in (b"", b"\0" * 7, os.urandom(300), struct.pack("<I", 2**32 - 1) + bytes(32)):
            peer = socket.create_connection(("127.0.0.1", port), 10)
            peer.sendall(raw)
            if raw:
                peer.close()
            else:
                held.append(peer)  # says nothing, and stays
        with refused_as(HOOK_PROTOCOL):
            ask_hook("127.0.0.1", port, b"another token of 20", Request(ASKED[:1], 20.0))
        began_s = time.monotonic()
        for n in range(3):
            answer = ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 20.0)).answer
            assert answer.parameters[0].name == "scale", n
        assert time.monotonic() - began_s < 10
        saved(hooked, 100)
        for peer in held:
            peer.close()
    own, right = saved(hooked, 100), saved(calm, 100)
    for (name, a), (_, b) in zip(own["parameters"], right["parameters"], strict=True):
        assert torch.equal(a, b), name
    with refused_as(HOOK_UNREACHABLE):
        ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 1.0))


@pytest.mark.parametrize("wrong", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":1"])
def test_a_wrong_setting_turns_it_off_and_training_goes_on(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(TOKEN)
    env = os.environ | {
        "FLOWCHECK_HOOK": wrong,
        "FLOWCHECK_HOOK_TOKEN_FILE": str(tmp_path / "token"),
    }
    code = "import torch; print(torch.ones(2).sum().item())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "2.0\n"
    assert ("flowcheck hook: it is off" in done.stderr) == bool(wrong)


@pytest.mark.parametrize("token", [b"", b"short"])
def test_a_token_that_is_none_turns_it_off(token: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(token)
    env = os.environ | {
        "FLOWCHECK_HOOK": "127.0.0.1:0",
        "FLOWCHECK_HOOK_TOKEN_FILE": str(tmp_path / "token"),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "it is off" in done.stderr


def test_another_server_is_told_from_a_hook() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)
        import threading

        def greet() -> None:
            peer, _ = server.accept()
            peer.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n" + bytes(60))
            peer.close()

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(StateError) as refused:
            ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 1.0))
        thread.join()
        assert refused.value.finding.is_any_of(HOOK_PROTOCOL)


def test_a_torn_frame_ends_the_wait() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"abc")
    with pytest.raises(HookError):
        read_exactly(ours, 4, time.monotonic() + 0.2)
    theirs.close()
    with pytest.raises(HookError):
        read_exactly(ours, 4, time.monotonic() + 0.2)
    ours.close()
