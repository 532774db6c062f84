"""The fleet file (TOML): nodes with their failure domains, how shards are kept, and the chains that
`flowcheck fleet up` starts. `flowcheck fleet plan` reads the same file and needs no chains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowcheck.config.config_decoding import ConfigSection, convert
from flowcheck.config.setting_line import naming_file_and_line
from flowcheck.config.toml_file import read_toml
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_plan import (
    DOMAIN_MISSING,
    FILE_TOO_LARGE,
    NO_NAME,
    NODE_TWICE,
)
from flowcheck.fleet.copy_placement import Strategy

MOST_FILE_BYTES = 1 << 20
"""A choice: 1,024 nodes take some 100 KiB."""
DOMAIN_KINDS = ("rack", "power", "switch")


class NodeConfig(ConfigSection, frozen=True, kw_only=True):
    """[[node]]: a machine that keeps parts of shards."""

    name: str
    rack: str | None = None
    power: str | None = None
    """Feed that it hangs on."""
    switch: str | None = None
    address: str | None = None
    """Address or name by which the other machines reach it, and that its servers listen on; needed
    by all but `fleet plan`."""
    port: int | None = None
    """Of its keeper; the ports behind it are those of its chains. None: the file's `port`."""

    def __post_init__(self) -> None:
        for key in ("name", *DOMAIN_KINDS):
            text = getattr(self, key)
            if text is not None and not text.strip():
                raise ConfigError(f"node.{key}", text, NO_NAME())


class RedundancyConfig(ConfigSection, frozen=True, kw_only=True):
    """[redundancy]: copies, with the names of Megatron-LM's options, or an erasure code."""

    strategy: Strategy | None = None
    replication_factor: int | None = None
    """Copies of a shard, its own included."""
    replication_jump: int | None = None
    """Nodes from one copy to the next."""
    data_blocks: int | None = None
    parity_blocks: int | None = None


class ChainConfig(ConfigSection, frozen=True, kw_only=True):
    """[[chain]]: what captures at one monitor port, or several of one machine."""

    job: str
    """Its job file."""
    node: str
    """Name of the machine that has the port."""
    name: str | None = None
    """None: that of the job file, without its ending."""

    @property
    def called(self) -> str:
        return Path(self.job).stem if self.name is None else self.name


class FleetConfig(ConfigSection, frozen=True, kw_only=True):
    """The fleet file."""

    name: str = "fleet"
    """Of the fleet: part of paths, and of the names of its actors."""
    state: str = "/var/lib/flowcheck/fleet"
    """Folder on each machine, in which the fleet has a folder of its name: its state, job files,
    and the run directories of its chains. On a disk that outlives a start of the machine."""
    port: int = 7380
    """TCP port of each machine's keeper. Those behind it are its chains': two for each."""
    token_file: str | None = None
    """File, on each machine, that holds the bearer token of the fleet: of keepers, of `[serve]` and
    of `[copies]`. Without it all addresses must be loopback."""
    tls_certificate: str | None = None
    """PEM file with a machine's certificate, at the same path on each. If stated, all of the
    fleet's servers speak https."""
    tls_key: str | None = None
    ca: str | None = None
    """CA bundle (PEM), on each machine, that signed these certificates."""
    node: tuple[NodeConfig, ...] = ()
    chain: tuple[ChainConfig, ...] = ()
    redundancy: RedundancyConfig = RedundancyConfig()

    def labels(self) -> dict[str, Sequence[str]]:
        """{kind of domain that the file states: [node] its domain}. Raises ConfigError where some
        of the nodes do not state one that others do."""
        found: dict[str, Sequence[str]] = {}
        for kind in DOMAIN_KINDS:
            each = [getattr(node, kind) for node in self.node]
            stated = [name for name in each if name is not None]
            if stated and len(stated) < len(each):
                at = each.index(None)
                key = f"node[{at}].{kind}"
                raise ConfigError(key, None, DOMAIN_MISSING(len(stated)))
            if stated:
                found[kind] = stated
        return found


def load_fleet(path: Path) -> FleetConfig:
    """Reads and checks a fleet file. Raises ConfigError that names the key and what it must be."""
    tree = read_toml(path, "fleet file", "FILE", most=(MOST_FILE_BYTES, FILE_TOO_LARGE))
    with naming_file_and_line(path, FleetConfig):
        config = convert(tree, FleetConfig)
        names = set[str]()
        for at, node in enumerate(config.node):
            if node.name in names:
                raise ConfigError(f"node[{at}].name", node.name, NODE_TWICE())
            names.add(node.name)
        config.labels()
        return config
