"""The job file: every table with its units and bounds, decoded from TOML in one place."""

from flowcheck.config.capture_config import MirrorConfig, RingConfig, SourceConfig, StagingConfig
from flowcheck.config.job_config import (
    JobConfig,
    decode_config,
    encode_config,
    job_from,
    load_job,
    naming_job_file,
)
from flowcheck.config.model_config import (
    ELEMENT_BYTES,
    GradientLogConfig,
    ModelConfig,
    ReplicaConfig,
)
from flowcheck.config.multi_job_config import (
    JobTableConfig,
    check_clip_scope,
    check_job_tables,
    check_jobs_distinguishable,
)
from flowcheck.config.optimizer_config import (
    CLASS_ARGUMENTS,
    AverageConfig,
    GroupConfig,
    OptimizerConfig,
    OptimizerPartConfig,
    ScalerConfig,
)
from flowcheck.config.persist_serve_config import PersistConfig, ServeConfig
from flowcheck.config.replica_copies_config import CopiesConfig, GradientsConfig
from flowcheck.config.watch_log_config import AuditConfig, HookConfig, LogConfig, WatchConfig

__all__ = [
    "CLASS_ARGUMENTS",
    "ELEMENT_BYTES",
    "AuditConfig",
    "AverageConfig",
    "CopiesConfig",
    "GradientLogConfig",
    "GradientsConfig",
    "GroupConfig",
    "HookConfig",
    "JobConfig",
    "JobTableConfig",
    "LogConfig",
    "MirrorConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OptimizerPartConfig",
    "PersistConfig",
    "ReplicaConfig",
    "RingConfig",
    "ScalerConfig",
    "ServeConfig",
    "SourceConfig",
    "StagingConfig",
    "WatchConfig",
    "check_clip_scope",
    "check_job_tables",
    "check_jobs_distinguishable",
    "decode_config",
    "encode_config",
    "job_from",
    "load_job",
    "naming_job_file",
]
