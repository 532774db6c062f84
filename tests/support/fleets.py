"""A small fleet on this machine: each node is a folder and a keeper of its own on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from support.netib import generate
from test_tainted_steps import LEARNING_RATE, job, trained

from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import ChainReport
from flowcheck.ops.fleet.checked_fleet import checked_fleet
from flowcheck.ops.fleet.fleet_place import fleet_state_of
from flowcheck.ops.fleet.fleet_status_command import look
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 8
PORTS = 5
"""Of a node: its keeper's, and two for each of up to two chains."""


def free_block(count: int) -> int:
    """The first of so many ports in a row that nobody uses, below those that the kernel gives."""
    for first in range(21000 + os.getpid() % 97 * 100, 32000, count):
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + count):
                own = held.enter_context(socket.socket())
                own.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


class Fleet:
    """The file of a fleet of nodes a, b, ..., each of which copies the chains of the one before."""

    def __init__(
        self, folder: Path, jobs: Mapping[str, tuple[str, str]], nodes: str, copies: int = 2
    ) -> None:
        """jobs: {chain: (its node, its job file)}; copies: of a shard, its own included."""
        self.folder = folder
        self.file = folder / "fleet.toml"
        first = free_block(PORTS * len(nodes))
        text = f'name = "t"\nstate = "{folder / "st"}"\n'
        for at, name in enumerate(nodes):
            text += f'[[node]]\nname = "{name}"\naddress = "127.0.0.1"\n'
            text += f"port = {first + PORTS * at}\n"
        root = '[services]\nuser = "root"\n' if os.geteuid() == 0 else ""
        for name, (node, own) in jobs.items():
            text += f'[[chain]]\njob = "{folder / name}.toml"\nnode = "{node}"\n'
            (folder / f"{name}.toml").write_text(own + root)
        self.file.write_text(
            text + '[redundancy]\nstrategy = "ring"\n' + f"replication_factor = {copies}\n"
        )
        self._open = ExitStack()

    def state(self, generation: int = 1) -> FleetState:
        return fleet_state_of(checked_fleet(self.file, generation), generation)

    def node(self, name: str) -> NodeFolder:
        return NodeFolder.of(self.state(), name)

    def run(self, chain: str) -> RunDir:
        return RunDir(Path(next(o.run for o in self.state().chains if o.name == chain)))

    def keeper(self, node: str) -> Command:
        """Its keeper, started as an actor starts it."""
        return self._open.enter_context(Command("fleet", "node", "--state", self.node(node).root))

    def status(self) -> tuple[int, Any]:
        code, out, err = flowcheck("fleet", "status", self.file, "--json")
        assert out, err
        return code, json.loads(out)

    def chain(self, name: str) -> ChainReport | None:
        """Its report; None: its machine does not answer."""
        state = self.state()
        shards = look(state, KeeperClient(None, None)).shards.values()
        return next((own for one in shards for own in one if own.name == name), None)

    def reaches(self, chain: str, step: int = STEPS) -> None:
        def there() -> bool:
            found = self.chain(chain)
            return found is not None and found.pid is not None and step in found.exact

        wait_until(there, LIMIT_S, f"step {step} of {chain}")

    def chain_dies(self, name: str) -> None:
        """All of its processes, with their memory."""
        run = self.run(name)
        memory = run.memory
        for pid in run.stage_pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not run.stage_pids(), LIMIT_S, "the end of a killed chain")
        shutil.rmtree(memory, ignore_errors=True)

    def close(self) -> None:
        """Whatever runs of it."""
        self._open.close()
        for own in self.state().chains:
            with suppress(Exception):
                self.chain_dies(own.name)


class SmallFleet(Fleet):
    """Chain ring0 captures at a, and those behind it have its copies."""

    def __init__(self, folder: Path, nodes: str, copies: int = 2) -> None:
        self.made = generate(job("LL128"), folder)
        own = f'[[source]]\nfile = "{self.made.files[0]}"\n'
        own += f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'
        super().__init__(folder, {"ring0": ("a", own)}, nodes, copies)

    def restored_is_torchs(self, *words: str) -> None:
        """`fleet restore` gives the last step, and it goes on as torch's own optimizer does."""
        out = self.folder / "last.pt"
        asked = ["fleet", "restore", self.file, "--format", "torch", "--out", out, "--force"]
        code, told, err = flowcheck(*asked, *words)
        assert code == 0, told + err
        parameters, optimizer = trained(self.made.truth, STEPS)
        again = torch.load(out)
        assert again["step"] == STEPS
        resumed = [torch.nn.Parameter(value.clone()) for value in again["model"].values()]
        goes_on = torch.optim.AdamW(resumed, lr=LEARNING_RATE)
        goes_on.load_state_dict(again["optimizer"])
        for one, other in zip(resumed, parameters, strict=True):
            assert torch.equal(one, other)
            torch.manual_seed(1)
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        goes_on.step()
        optimizer.step()
        for one, other in zip(resumed, parameters, strict=True):
            assert torch.equal(one, other)


@contextmanager
def small_fleet(folder: Path, nodes: str = "ab", copies: int = 2) -> Iterator[SmallFleet]:
    made = SmallFleet(folder, nodes, copies)
    try:
        yield made
    finally:
        made.close()
