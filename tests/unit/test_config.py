"""Job files: what is wrong is named by its key, with what would be right."""

from pathlib import Path

import pytest
import torch

from flowcheck.config import (
    JobConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    decode_config,
    encode_config,
    load_job,
)
from flowcheck.errors import ConfigError

GOOD = """
digests = true
run = "/run/flowcheck/a"

[[source]]
file = "one.pcapng"
speed = 2.5

[[source]]
vdev = "net_af_packet0,iface=mirror0"
queues = 2
engines = ["dma_skeleton0"]

[ring]
slots = 4096

[optimizer]
name = "adamw"
learning_rate = 1e-4
betas = [0.9, 0.95]
"""


def job(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_job(job(folder, text))
    return str(caught.value)


def test_a_whole_job_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load_job(job(tmp_path, GOOD))
    assert config.source[0].file == "one.pcapng"
    assert config.source[1].engines == ("dma_skeleton0",)
    assert config.ring == RingConfig(slots=4096, slot_bytes=4352)
    assert config.optimizer == OptimizerConfig(name="adamw", learning_rate=1e-4, betas=(0.9, 0.95))
    assert config.digests


def test_every_queue_of_every_source_has_a_ring_number(tmp_path: Path) -> None:
    assert load_job(job(tmp_path, GOOD)).rings == ((0, 0), (1, 0), (1, 1))


def test_only_files_make_the_chain_wait_instead_of_dropping() -> None:
    assert not SourceConfig(file="a").live
    assert not SourceConfig(vdev="net_pcap0,rx_pcap=a").live
    assert SourceConfig(pci="0000:3b:00.0").live
    assert SourceConfig(interface="mirror0").live


@pytest.mark.parametrize(
    ("before", "after", "nearest"),
    [
        ("[ring]\nslots", "[ring]\nslotts", "did you mean ring.slots?"),
        ("learning_rate", "learning_rat", "did you mean optimizer.learning_rate?"),
        ("digests", "digest", "did you mean digests?"),
        ("learning_rate", "lr", "did you mean optimizer.learning_rate?"),
        ("engines", "engine", "did you mean source.engines?"),
        ("[optimizer]", "[optimiser]", "did you mean optimizer?"),
        ("[optimizer]", "[optimizer]\njobs = 2", "jobs belongs above the first [table]"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, before: str, after: str, nearest: str
) -> None:
    assert nearest in refused(tmp_path, GOOD.replace(before, after, 1))


@pytest.mark.parametrize("key", ["learning_rate", "momentum", "eps", "weight_decay"])
def test_what_torch_refuses_below_zero_is_refused_before_anything_starts(
    tmp_path: Path, key: str
) -> None:
    own = "sgd" if key == "momentum" else "adam"
    with pytest.raises(ValueError, match="Invalid"):
        getattr(torch.optim, own.replace("sgd", "SGD").replace("adam", "Adam"))(
            [torch.zeros(1)], **{{"learning_rate": "lr"}.get(key, key): -0.1}
        )
    stated = f'[optimizer]\nname = "{own}"\nlearning_rate = 0.1\n'
    if key == "learning_rate":
        stated = stated.replace("0.1", "-0.1")
    else:
        stated += f"{key} = -0.1\n"
    sentence = refused(tmp_path, '[[source]]\nfile = "a"\n' + stated)
    assert f"optimizer.{key} = -0.1: must be 0 or more" in sentence


def test_a_key_like_no_other_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    sentence = refused(tmp_path, "xyzzy = 1\n" + GOOD)
    assert "xyzzy" in sentence
    assert "known keys: source, optimizer" in sentence


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("slots = 4096", 'slots = "many"', "ring.slots = 'many': must be a whole number, not text"),
        ("speed = 2.5", 'speed = "fast"', "source[0].speed = 'fast': must be a number, not text"),
        ('"adamw"', "3", "optimizer.name = 3: must be text in quotes, not a whole number"),
        (
            "1e-4",
            "1.0\nimplementation = 3",
            "optimizer.implementation = 3: must be one of loop, foreach",
        ),
        ("queues = 2", "queues = 1.5", "source[1].queues = 1.5: must be a whole number, not a num"),
        ('"one.pcapng"', "7", "source[0].file = 7: must be text in quotes, not a whole number"),
        (
            "betas = [0.9, 0.95]",
            "betas = [0.9]",
            "optimizer.betas = [0.9]: must be a list of 2, no",
        ),
        ("digests = true", "digests = 1", "digests = 1: must be true or false, not a whole number"),
    ],
)
def test_a_wrong_type_is_refused_with_its_key_and_what_would_be_right(
    tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    told = refused(tmp_path, GOOD.replace(before, after, 1))
    assert told.startswith(sentence)
    assert "`" not in told


def test_a_key_that_is_left_out_and_must_not_be_is_named(tmp_path: Path) -> None:
    told = refused(tmp_path, GOOD.replace('name = "adamw"', ""))
    assert told.partition("; see ")[0].endswith("name must be stated")


@pytest.mark.parametrize(
    ("before", "after", "key", "right"),
    [
        ("slots = 4096", "slots = 4095", "ring.slots", "power of two"),
        ("slots = 4096", "slots = 1", "ring.slots", "power of two"),
        ("slots = 4096", "slot_bytes = 1000", "ring.slot_bytes", "multiple of 64"),
        ("speed = 2.5", "speed = 0", "source.speed", "above 0"),
        ("speed = 2.5", "queues = 0", "source.queues", "1 or more"),
        ("speed = 2.5", "idle_us = -1", "source.idle_us", "0 or more"),
        ("speed = 2.5", 'interface = "e0"', "source", "exactly one"),
        ('file = "one.pcapng"', "", "source", "exactly one"),
        ("1e-4", "-1.0", "optimizer.learning_rate", "0 or more"),
        ("1e-4", "1.0\nnesterov = true", "optimizer.nesterov", "adamw has no nesterov"),
        ("1e-4", "1.0\nmomentum = 0.9", "optimizer.momentum", "adamw has no momentum"),
        ("0.95]", "1.0]", "optimizer.betas", "below 1"),
        ("[ring]", "[staging]\nsize_bytes = 5\n[ring]", "staging.size_bytes", "or more"),
        ("digests = true", 'nccl = "2.x"', "nccl", "2.21.5"),
        ("[ring]", "[parse]\nicrc_every = -1\n[ring]", "parse.icrc_every", "0 or more"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_what_would(
    tmp_path: Path, before: str, after: str, key: str, right: str
) -> None:
    sentence = refused(tmp_path, GOOD.replace(before, after, 1))
    assert sentence.startswith(key)
    assert right in sentence


def test_a_missing_optimizer_is_asked_for_never_guessed(tmp_path: Path) -> None:
    sentence = refused(tmp_path, GOOD.partition("[optimizer]")[0])
    assert "the optimizer never crosses the wire" in sentence
    assert "[optimizer]" in sentence


def test_a_job_without_a_source_is_refused(tmp_path: Path) -> None:
    assert "source" in refused(tmp_path, '[optimizer]\nname = "sgd"\nlearning_rate = 0.1')
    assert "[[source]]" in refused(
        tmp_path, 'source = []\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1'
    )


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    assert "is not valid TOML" in refused(tmp_path, "a = = b")
    with pytest.raises(ConfigError, match=r"absent\.toml.*cannot be read"):
        load_job(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\x00\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        load_job(tmp_path / "binary.toml")


def test_settings_survive_the_run_directory(tmp_path: Path) -> None:
    config = load_job(job(tmp_path, GOOD))
    assert decode_config(encode_config(config)) == config


def test_settings_cannot_be_changed_once_read(tmp_path: Path) -> None:
    config = load_job(job(tmp_path, GOOD))
    with pytest.raises(AttributeError):
        config.digests = False  # type: ignore[misc]
    assert isinstance(config, JobConfig)
