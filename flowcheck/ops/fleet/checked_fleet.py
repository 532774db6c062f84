"""A fleet file as `flowcheck fleet up` runs it: read, with its job files, and all checked that one
machine can check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from flowcheck.config import JobConfig, job_from, load_job
from flowcheck.config.persist_serve_config import LOOPBACK, is_local_place
from flowcheck.config.setting_line import naming_file_and_line
from flowcheck.config.toml_file import read_toml
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_plan import NO_NODES
from flowcheck.findings.catalog.fleet_running import (
    ADDRESS_TWICE,
    CAPTURES_NOTHING,
    CHAIN_TWICE,
    CODE_NOT_RUN,
    LOST_TOGETHER_WITH,
    NO_ADDRESS,
    NO_CHAINS,
    NOT_A_NAME,
    NOT_ONE_JOB,
    PLACE_TWICE,
    UNKNOWN_NODE,
)
from flowcheck.findings.catalog.refused_settings import FROM_TO, NEEDS_OTHER, TOKEN_NEEDED
from flowcheck.findings.finding import Finding
from flowcheck.fleet.copy_placement import Placement
from flowcheck.fleet.failure_domains import spread_placement
from flowcheck.fleet.fleet_chains import (
    PORTS_OF_CHAIN,
    FleetChain,
    fleet_chains,
    keeper_port,
    url_of,
)
from flowcheck.fleet.fleet_file import FleetConfig, RedundancyConfig, load_fleet
from flowcheck.ops.fleet.planned_fleet import chosen_redundancy
from flowcheck.vault.persist.storage_target import local_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""A choice: with it a run directory's sockets have names that fit into 107 bytes (unix(7))."""


class CheckedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """What the file states, and what follows of it."""

    file: Path
    config: FleetConfig
    placement: Placement
    chains: tuple[FleetChain, ...]
    keepers: dict[str, str]
    """{node: URL of its keeper}"""
    notes: tuple[Finding, ...]


def checked_fleet(path: Path, epoch: int = 0) -> CheckedFleet:
    """Reads a fleet file and the job files that it names. epoch: of `[copies]` in what is written.
    Raises ConfigError, which names the key and what it must be."""
    config = load_fleet(path)
    with naming_file_and_line(path, FleetConfig):
        _check_names(config)
        _check_servers(config)
        placement = _placement(config)
    jobs = [_job_tables(at, own.job, config, placement) for at, own in enumerate(config.chain)]
    with naming_file_and_line(path, FleetConfig):
        chains = fleet_chains(config, jobs, placement, epoch)
        _check_ports(config, chains)
        _check_places(config, jobs)
    for own in chains:
        _read_back(own)
    return CheckedFleet(
        file=path,
        config=config,
        placement=placement,
        chains=chains,
        keepers={
            node.name: url_of(config, node, keeper_port(config, node)) for node in config.node
        },
        notes=tuple(
            LOST_TOGETHER_WITH(chain=own.name, node=own.node)
            for own in chains
            if own.of is None and own.copied is None
        ),
    )


def placed_fleet(path: Path) -> CheckedFleet:
    """The same without the job files, which are on other machines or have changed since: chains
    have their names, places and addresses, and no job file. Raises ConfigError."""
    config = load_fleet(path)
    with naming_file_and_line(path, FleetConfig):
        _check_names(config)
        _check_servers(config)
        placement = _placement(config)
        chains = fleet_chains(config, [{}] * len(config.chain), placement, 0)
    keepers = {node.name: url_of(config, node, keeper_port(config, node)) for node in config.node}
    return CheckedFleet(
        file=path, config=config, placement=placement, chains=chains, keepers=keepers, notes=()
    )


def _check_names(config: FleetConfig) -> None:
    if not config.node:
        raise ConfigError("node", None, NO_NODES())
    if not config.chain:
        raise ConfigError("chain", None, NO_CHAINS())
    _check_name("name", config.name)
    names = [node.name for node in config.node]
    for at, node in enumerate(config.node):
        _check_name(f"node[{at}].name", node.name)
        if node.address is None:
            raise ConfigError(f"node[{at}].address", None, NO_ADDRESS(node.name))
    known = set[str]()
    for at, own in enumerate(config.chain):
        _check_name(f"chain[{at}].{'job' if own.name is None else 'name'}", own.called)
        if own.called in known:
            raise ConfigError(f"chain[{at}].name", own.called, CHAIN_TWICE())
        known.add(own.called)
        if own.node not in names:
            raise ConfigError(f"chain[{at}].node", own.node, UNKNOWN_NODE(names))


def _check_name(key: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(key, name, NOT_A_NAME())


def _check_servers(config: FleetConfig) -> None:
    """Who is reached where, and by whom."""
    if config.tls_key is not None and config.tls_certificate is None:
        raise ConfigError("tls_key", config.tls_key, NEEDS_OTHER("tls_certificate"))
    if config.ca is not None and config.tls_certificate is None:
        raise ConfigError("ca", config.ca, NEEDS_OTHER("tls_certificate"))
    seen: dict[tuple[str | None, int], str] = {}
    for at, node in enumerate(config.node):
        port = keeper_port(config, node)
        if not 1 <= port <= 65535:
            key = "port" if node.port is None else f"node[{at}].port"
            raise ConfigError(key, port, FROM_TO(least=1, most=65535))
        if config.token_file is None and node.address not in LOOPBACK:
            right = TOKEN_NEEDED(token_file="token_file", loopback=LOOPBACK[0])
            raise ConfigError(f"node[{at}].address", node.address, right)
        if (other := seen.get((node.address, port))) is not None:
            raise ConfigError(f"node[{at}].address", node.address, ADDRESS_TWICE(other))
        seen[node.address, port] = node.name


def _check_ports(config: FleetConfig, chains: Sequence[FleetChain]) -> None:
    """Those behind a keeper's are free of other keepers' of the same address."""
    taken = {(node.address, keeper_port(config, node)): node.name for node in config.node}
    for at, node in enumerate(config.node):
        own = sum(chain.node == node.name for chain in chains)
        first = keeper_port(config, node) + 1
        for port in range(first, first + own * PORTS_OF_CHAIN):
            if port > 65535:
                raise ConfigError("port", port, FROM_TO(least=1, most=65535))
            if (other := taken.setdefault((node.address, port), node.name)) != node.name:
                raise ConfigError(f"node[{at}].port", port, ADDRESS_TWICE(other))


def _check_places(config: FleetConfig, jobs: Sequence[Mapping[str, Any]]) -> None:
    """No two chains save to one store, or to one folder of a machine. The same path on two machines
    may be two disks, or a mount of one: that is not told here."""
    taken: dict[tuple[str, str], str] = {}
    for at, (own, tables) in enumerate(zip(config.chain, jobs, strict=True)):
        persist = tables.get("persist", {})
        targets = [*persist.get("targets", ()), persist.get("target"), tables.get("checkpoint")]
        for target in filter(None, dict.fromkeys(targets)):
            local = is_local_place(target)
            place = str(local_path(target).resolve()) if local else target.rstrip("/")
            key = own.node if local else "", place
            if (other := taken.setdefault(key, own.called)) != own.called:
                raise ConfigError(f"chain[{at}].job", own.job, PLACE_TWICE(place=place, of=other))


def _placement(config: FleetConfig) -> Placement:
    strategy, redundancy, jump = chosen_redundancy(
        config.redundancy, RedundancyConfig(), len(config.node)
    )
    if redundancy.needed > 1:
        raise ConfigError("redundancy.data_blocks", redundancy.needed, CODE_NOT_RUN())
    return spread_placement(config.labels(), len(config.node), strategy, redundancy, jump)


def _job_tables(at: int, name: str, config: FleetConfig, placement: Placement) -> Mapping[str, Any]:
    """The tables of a job file that is right by itself."""
    job = load_job(Path(name))
    if job.gradients is not None:
        raise ConfigError(f"chain[{at}].job", name, CAPTURES_NOTHING())
    if job.several and placement.redundancy.spare:
        raise ConfigError(f"chain[{at}].job", name, NOT_ONE_JOB())
    return read_toml(Path(name), "job file", "job file")


def _read_back(chain: FleetChain) -> JobConfig:
    """What is written is a job file. Raises ConfigError."""
    import tomllib

    own = job_from(tomllib.loads(chain.job))
    assert own.serve is not None and urlsplit(chain.served).port == own.serve.port
    return own
