"""The chains of a fleet: those that capture, at their machines, and their copies, where the plan
puts them; with the job file of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_running import FLEET_WRITES
from flowcheck.fleet.copy_placement import Placement
from flowcheck.fleet.fleet_file import ChainConfig, FleetConfig, NodeConfig
from flowcheck.fleet.toml_text import toml_text

WRITTEN_TABLES = ("serve", "copies", "gradients")
"""Tables of a chain's job file that the fleet writes."""
COPIED_TABLES = ("optimizer", "model", "replica", "services", "log", "nccl", "last_step")
"""What a copy's job file has of its chain's: what decides its arithmetic, and how it runs. Not what
names a place: two chains never write to one."""
PORTS_OF_CHAIN = 2
"""One that steps are served at, one that copies follow at."""


class FleetChain(msgspec.Struct, frozen=True, kw_only=True):
    """One chain on one machine."""

    name: str
    node: str
    of: str | None
    """Name of the chain that it copies; None: it captures."""
    job: str
    """Its job file, as TOML."""
    run: str
    """Its run directory."""
    served: str
    """URL of its `[serve]`."""
    copied: str | None
    """URL of its `[copies]`; None: nobody copies it."""

    @property
    def shard(self) -> str:
        """Name of the chain whose replica it has: its own, or the one that it copies."""
        return self.name if self.of is None else self.of


def fleet_chains(
    config: FleetConfig, jobs: Sequence[Mapping[str, Any]], placement: Placement, epoch: int
) -> tuple[FleetChain, ...]:
    """All chains, each one that captures before its copies.

    jobs: [chain of the file] the tables of its job file. placement: of the file's nodes, in their
    order. epoch: of `[copies]`, higher than that of any earlier start of the fleet. Raises
    ConfigError where a job file states what the fleet writes.
    """
    writer = _Writer(config, epoch)
    found = []
    for own, tree in zip(config.chain, jobs, strict=True):
        for table in WRITTEN_TABLES:
            if table in tree:
                raise ConfigError("chain.job", own.job, FLEET_WRITES(table=table, file=own.job))
        _, *others = placement.shards[writer.index[own.node]]
        first = writer.capturing(own, tree, copies=len(others))
        found.append(first)
        found += [writer.copy_of(first, tree, config.node[at]) for at in others]
    return tuple(found)


def url_of(config: FleetConfig, node: NodeConfig, port: int) -> str:
    """Of a server of the fleet."""
    scheme = "http" if config.tls_certificate is None else "https"
    host = f"[{node.address}]" if ":" in str(node.address) else node.address
    return f"{scheme}://{host}:{port}"


def keeper_port(config: FleetConfig, node: NodeConfig) -> int:
    return config.port if node.port is None else node.port


class _Writer:
    """Gives chains their ports in turn."""

    def __init__(self, config: FleetConfig, epoch: int) -> None:
        self._config, self._epoch = config, epoch
        self.index = {node.name: at for at, node in enumerate(config.node)}
        self._chains = dict.fromkeys(self.index, 0)

    def capturing(self, own: ChainConfig, tree: Mapping[str, Any], *, copies: int) -> FleetChain:
        node = self._config.node[self.index[own.node]]
        serve, follow = self._ports(node)
        job = dict(tree) | {"serve": self._server(node, serve)}
        copied = None
        if copies:
            copied = url_of(self._config, node, follow)
            job["copies"] = self._server(node, follow) | {"epoch": self._epoch}
        return self._made(own.called, node, None, job, serve, copied)

    def copy_of(self, first: FleetChain, tree: Mapping[str, Any], node: NodeConfig) -> FleetChain:
        serve, _ = self._ports(node)
        job = {key: tree[key] for key in COPIED_TABLES if key in tree}
        job["gradients"] = {
            "chains": [first.copied],
            "token_file": self._config.token_file,
            "ca": self._config.ca,
        }
        job["serve"] = self._server(node, serve)
        return self._made(f"{first.name}.{node.name}", node, first.name, job, serve, None)

    def _made(
        self,
        name: str,
        node: NodeConfig,
        of: str | None,
        job: dict[str, Any],
        serve: int,
        copied: str | None,
    ) -> FleetChain:
        run = f"{self._config.state.rstrip('/')}/{self._config.name}/{node.name}/runs/{name}"
        return FleetChain(
            name=name,
            node=node.name,
            of=of,
            job=toml_text(job | {"run": run}),
            run=run,
            served=url_of(self._config, node, serve),
            copied=copied,
        )

    def _ports(self, node: NodeConfig) -> tuple[int, int]:
        first = keeper_port(self._config, node) + 1 + PORTS_OF_CHAIN * self._chains[node.name]
        self._chains[node.name] += 1
        return first, first + 1

    def _server(self, node: NodeConfig, port: int) -> dict[str, Any]:
        return {
            "host": node.address,
            "port": port,
            "token_file": self._config.token_file,
            "tls_certificate": self._config.tls_certificate,
            "tls_key": self._config.tls_key,
        }
