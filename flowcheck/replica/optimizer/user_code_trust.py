"""Which user code may run: code that a job file states is called, code that only a checkpoint's
manifest names is not: whoever made that may be anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from flowcheck.config import OptimizerConfig
from flowcheck.config.config_decoding import ConfigSection
from flowcheck.config.optimizer_config import OptimizerPartConfig
from flowcheck.replica.optimizer.lr_schedule_dry_run import is_user_function
from flowcheck.replica.user_code import UntrustedCode

_KEYS = ("factory", "schedule", "rounding")
"""Settings that may name code."""
_ARGUMENTS = {"factory": "factory_arguments", "schedule": "schedule_arguments"}

CodeReference = tuple[str, str, bytes]
"""Key, "file.py:function", the arguments it is called with."""


def with_untrusted_code(config: OptimizerConfig) -> OptimizerConfig:
    """The same configuration, whose code nobody calls."""
    return _worded(config, UntrustedCode)


def with_trusted_code(config: OptimizerConfig, by: OptimizerConfig | None) -> OptimizerConfig:
    """The same configuration; code of it that `by` states with the same arguments is run
    again. by: of a job file; None: whoever asks vouches for all of it."""
    stated = None if by is None else set(_named(by))
    if stated is not None and not stated >= set(_named(config)):
        return config
    return _worded(config, str.__str__)


def names_untrusted_code(config: OptimizerConfig) -> bool:
    """Whether it names code that is not run, for nobody here states it."""
    return any(isinstance(text, UntrustedCode) for _, _, text in _texts(config))


def _named(config: OptimizerConfig) -> Iterator[CodeReference]:
    for own, key, text in _texts(config):
        arguments = getattr(own, _ARGUMENTS.get(key, ""), {})
        yield key, str.__str__(text), msgspec.json.encode(arguments, order="sorted")


def _texts(config: OptimizerConfig) -> Iterator[tuple[ConfigSection, str, str]]:
    """(whose it is, key, what it names) of all code."""
    for own in (config, *config.each):
        for key in _KEYS:
            text = getattr(own, key, None)
            if text is not None and (key != "schedule" or is_user_function(text)):
                yield own, key, text


def _worded(config: OptimizerConfig, kind: Any) -> OptimizerConfig:
    each = tuple(
        msgspec.structs.replace(one, schedule=kind(one.schedule)) if _own(one) else one
        for one in config.each
    )
    found = {key: kind(text) for own, key, text in _texts(config) if own is config}
    return msgspec.structs.replace(config, each=each, **found)


def _own(one: OptimizerPartConfig) -> bool:
    return one.schedule is not None and is_user_function(one.schedule)
