"""The table of the job file about sharded training, of which the parameters are followed."""

from __future__ import annotations

from flowcheck.errors import ConfigError
from flowcheck.strict import Section, at_least


class ShardedConfig(Section, frozen=True, kw_only=True):
    """The model as the training script wraps it. Without it what is gathered is called unit.N."""

    factory: str
    """"train.py:make", which returns the model wrapped by fully_shard or FullyShardedDataParallel:
    names, shapes and types are asked of torch."""
    ranks: int
    """Of the whole job: the world that the factory is called in."""

    def __post_init__(self) -> None:
        file, _, name = self.factory.rpartition(":")
        if not (file.endswith(".py") and name.isidentifier()):
            raise ConfigError("sharded.factory", self.factory, 'is written "file.py:function"')
        at_least("sharded.ranks", self.ranks, 2)
