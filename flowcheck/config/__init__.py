"""Settings: every table of a job file with its units and bounds, read from TOML in one place."""

from flowcheck.config.captured import MirrorConfig, RingConfig, SourceConfig, StagingConfig
from flowcheck.config.job import JobConfig, decode_config, encode_config, job_from, load_job
from flowcheck.config.modelled import ELEMENT_BYTES, GradientLogConfig, ModelConfig, ReplicaConfig
from flowcheck.config.optimizer import (
    AverageConfig,
    EachConfig,
    GroupConfig,
    OptimizerConfig,
    ScalerConfig,
)
from flowcheck.config.persisted import PersistConfig, ServeConfig
from flowcheck.config.several import OwnConfig, check_clip, check_several, check_told_apart
from flowcheck.config.watched import LogConfig, WatchConfig

__all__ = [
    "ELEMENT_BYTES",
    "AverageConfig",
    "EachConfig",
    "GradientLogConfig",
    "GroupConfig",
    "JobConfig",
    "LogConfig",
    "MirrorConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OwnConfig",
    "PersistConfig",
    "ReplicaConfig",
    "RingConfig",
    "ScalerConfig",
    "ServeConfig",
    "SourceConfig",
    "StagingConfig",
    "WatchConfig",
    "check_clip",
    "check_several",
    "check_told_apart",
    "decode_config",
    "encode_config",
    "job_from",
    "load_job",
]
