"""The hook in a real trainer, judged by what the training script saved itself."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.hooked import TOKEN, saved, trained
from support.refused_as import refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.trainer_hook import HOOK_PROTOCOL, HOOK_REFUSES, HOOK_UNREACHABLE
from flowcheck.hook import install, torch_autoload
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
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("adamw", "module"),
        pytest.param("two", "variable", marks=pytest.mark.nightly),
        pytest.param("accumulated", "variable", marks=pytest.mark.nightly),
        pytest.param("sgd", "module", marks=pytest.mark.nightly),
    ],
)
def test_values_are_those_of_the_step_that_they_say(kind: str, by: str, tmp_path: Path) -> None:
    with trained(tmp_path, kind, by=by) as port:
        for _ in range(5):
            answer = ask_hook("127.0.0.1", port, TOKEN, Request(ASKED, 60.0)).answer
            right = wanted(tmp_path, answer.steps, ASKED)
            assert [one.index for one in answer.parameters] == [one.index for one in ASKED]
            for one, own in zip(answer.parameters, right, strict=True):
                assert {"": one.value} | one.states == own, one.name
                assert one.own_step in (None, answer.steps)
        with disturb(port):
            assert ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 60.0)).answer.parameters
        with refused_as(HOOK_REFUSES):
            ask_hook("127.0.0.1", port, TOKEN, Request((AskedParameter(6, ((0, 1),)),), 60.0))
        with refused_as(HOOK_REFUSES):
            ask_hook("127.0.0.1", port, TOKEN, Request((AskedParameter(0, ((0, 2),)),), 60.0))


def disturb(port: int) -> socket.socket:
    """Clients that have no token, and one that says nothing and stays."""
    for raw in (b"\0" * 7, os.urandom(300), struct.pack("<I", 2**32 - 1) + bytes(32)):
        with socket.create_connection(("127.0.0.1", port), 10) as peer:
            peer.sendall(raw)
    with refused_as(HOOK_PROTOCOL):
        ask_hook("127.0.0.1", port, b"another token of 20", Request(ASKED[:1], 60.0))
    return socket.create_connection(("127.0.0.1", port), 10)


@pytest.mark.nightly
def test_hostile_clients_change_no_bit_of_the_training(tmp_path: Path) -> None:
    calm, hooked = tmp_path / "calm", tmp_path / "hooked"
    for folder in (calm, hooked):
        folder.mkdir()
    with trained(calm, "adamw", by="nothing"):
        saved(calm, 100)
    with trained(hooked, "adamw", by="module") as port:
        for _ in range(3):
            with disturb(port):
                answer = ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 60.0)).answer
            assert answer.parameters[0].name == "scale"
        saved(hooked, 100)
    own, right = saved(hooked, 100), saved(calm, 100)
    for (name, a), (_, b) in zip(own["parameters"], right["parameters"], strict=True):
        assert torch.equal(a, b), name
    with refused_as(HOOK_UNREACHABLE):
        ask_hook("127.0.0.1", port, TOKEN, Request(ASKED[:1], 1.0))


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("FLOWCHECK_HOOK", "127.0.0.1", "is no address and port"),
        ("FLOWCHECK_HOOK", "127.0.0.1:x", "is no address and port"),
        ("FLOWCHECK_HOOK", "127.0.0.1:99999", "is no address and port"),
        ("FLOWCHECK_HOOK", ":1", "is no address and port"),
        ("FLOWCHECK_HOOK_RANK", "first", "not the number of a rank"),
        ("FLOWCHECK_HOOK_TOKEN_FILE", "/none", "in /none cannot be read: No such file"),
        ("FLOWCHECK_HOOK_TOKEN_FILE", "", "nor --token-file names a file"),
        ("FLOWCHECK_HOOK_TOKEN_FILE", "short", "a token has 16 or more"),
    ],
)
def test_a_wrong_setting_turns_it_off(
    key: str,
    value: str,
    right: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "short").write_bytes(b"0123456789")
    monkeypatch.setattr(install, "_begun", [])
    monkeypatch.setenv("FLOWCHECK_HOOK", "127.0.0.1:0")
    monkeypatch.setenv("FLOWCHECK_HOOK_TOKEN_FILE", "token")
    monkeypatch.setenv(key, value)
    torch_autoload.load()
    told = capsys.readouterr().err
    assert told.startswith("flowcheck hook: it is off: ") and right in told


def test_without_its_variable_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_begun", [])
    monkeypatch.delenv("FLOWCHECK_HOOK", raising=False)
    torch_autoload.load()
    assert install._begun == []


def test_another_server_is_told_from_a_hook() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(60)
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
