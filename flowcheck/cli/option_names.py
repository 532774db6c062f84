"""Settings that a command line states: an error about one names the option that was typed, not the
key of the job file that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from flowcheck.errors import ConfigError, RunDirError
from flowcheck.findings.finding import Finding

OF_LAB = (
    *("hosts", "switch", "mtu", "mirror", "erspan", "name", "steps", "rounds", "kill-at"),
    *("algo", "channels", "heads", "layers", "loss", "nccl", "protocol", "tree-below", "width"),
)
"""Settings of the lab's commands, which are options alone."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "replay": {
        "optimizer.learning_rate": "--lr",
        "optimizer.name": "--optimizer",
        "source.speed": "--speed",
        "jobs": "--jobs",
    },
    "watch": {
        "watch.listen": "--listen",
        "watch.token_file": "--token-file",
        "token_file": "--token-file",
        "watch.tls_certificate": "--tls-certificate",
        "watch.tls_key": "--tls-key",
    },
    "audit": {"audit.interval_s": "--interval", "audit.wait_s": "--wait"},
    "serve": {
        "serve.host": "--host",
        "serve.port": "--port",
        "serve.token_file": "--token-file",
        "token_file": "--token-file",
        "serve.tls_certificate": "--tls-certificate",
        "serve.tls_key": "--tls-key",
        "serve.connections": "--connections",
    },
    "analyze": {"model.factory": "--model"},
    "lab": {key: f"--{key}" for key in OF_LAB},
}
"""{command: {key: option}}"""
OF_ALL = {"run": "--run"}
"""{key: option} of every command."""


@contextmanager
def naming_options(words: Sequence[str]) -> Iterator[None]:
    """A ConfigError from within about a setting that these words of a command line state names the
    option. Settings that the job file states, or nobody, keep their keys."""
    try:
        yield
    except ConfigError as error:
        of_command = OF_ALL | dict(OPTIONS.get(next(iter(words), ""), {}))
        option = of_command.get(error.key)
        typed = any(word == option or word.startswith(f"{option}=") for word in words)
        if option is None or not typed or isinstance(error, RunDirError):
            raise
        raise ConfigError(option, error.value, _advice(error.right, of_command)) from error


def _advice(right: Finding, options: Mapping[str, str]) -> Finding:
    """What to state instead, in options as well."""
    told = {
        name: options.get(value, value) if isinstance(value, str) else value
        for name, value in right.arguments.items()
    }
    return msgspec.structs.replace(right, arguments=told).with_current_texts()
