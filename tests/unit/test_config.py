"""Job files: what is wrong is named by its key, with what would be right."""

import re
from pathlib import Path

import pytest
import torch
from support.refused_as import Wanted, like, refused_as

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
from flowcheck.findings.catalog.general_errors import FILE_MISSING
from flowcheck.findings.catalog.refused_files import NOT_TEXT
from flowcheck.findings.catalog.refused_optimizers import (
    BETAS,
    HAS_NO_SETTING,
    NAME_NOT_STATED,
    NOT_STATED,
)
from flowcheck.findings.catalog.refused_settings import (
    ABOVE,
    ABOVE_TABLES,
    AT_LEAST,
    DID_YOU_MEAN,
    KNOWN_KEYS,
    NO_SOURCE,
    NOT_TOML,
    ONE_OF,
    ONE_SOURCE_KIND,
    RING_SLOT_BYTES,
    RING_SLOTS,
    SEVERAL_SOURCE_KINDS,
    UNKNOWN_KEY,
    UNREADABLE,
    VERSION,
    WRONG_LENGTH,
    WRONG_TYPE,
)
from flowcheck.findings.finding import Finding

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


def refused(folder: Path, text: str, *wanted: Wanted, **arguments: object) -> Finding:
    with refused_as(*wanted, kind=ConfigError, **arguments) as caught:
        load_job(job(folder, text))
    return caught.value.finding


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
        ("[ring]\nslots", "[ring]\nslotts", DID_YOU_MEAN("ring.slots")),
        ("learning_rate", "learning_rat", DID_YOU_MEAN("optimizer.learning_rate")),
        ("digests", "digest", DID_YOU_MEAN("digests")),
        ("learning_rate", "lr", DID_YOU_MEAN("optimizer.learning_rate")),
        ("engines", "engine", DID_YOU_MEAN("source.engines")),
        ("[optimizer]", "[optimiser]", DID_YOU_MEAN("optimizer")),
        ("[optimizer]", '[persist]\nfodler = "x"\n[optimizer]', DID_YOU_MEAN("persist.target")),
        ("[optimizer]", '[persist]\nfolder = "x"\n[optimizer]', DID_YOU_MEAN("persist.target")),
        ("[optimizer]", '[persist]\nfromat = "x"\n[optimizer]', DID_YOU_MEAN("persist.format")),
        ("[optimizer]", "[optimizer]\njobs = 2", ABOVE_TABLES("jobs")),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, before: str, after: str, nearest: Finding
) -> None:
    refused(tmp_path, GOOD.replace(before, after, 1), nearest)


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
    stated = '[[source]]\nfile = "a"\n' + stated
    refused(tmp_path, stated, AT_LEAST(0), key=f"optimizer.{key}", value="-0.1")


def test_a_key_like_no_other_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    known = re.compile("'source', 'optimizer'")
    wanted = like(UNKNOWN_KEY, hint=like(KNOWN_KEYS, keys=known))
    refused(tmp_path, "xyzzy = 1\n" + GOOD, wanted, key="xyzzy")


TEXT, WHOLE = "text in quotes", "a whole number"


def not_of(right: str, found: str) -> Finding:
    return WRONG_TYPE(wanted=right, found=found)


@pytest.mark.parametrize(
    ("before", "after", "key", "value", "wanted"),
    [
        ("slots = 4096", 'slots = "many"', "ring.slots", "'many'", not_of(WHOLE, TEXT)),
        ("speed = 2.5", 'speed = "fast"', "source[0].speed", "'fast'", not_of("a number", TEXT)),
        ('"adamw"', "3", "optimizer.name", "3", not_of(TEXT, WHOLE)),
        (
            "1e-4",
            "1.0\nimplementation = 3",
            "optimizer.implementation",
            "3",
            like(ONE_OF, choices=re.compile("'loop', 'foreach'")),
        ),
        (
            "queues = 2",
            "queues = 1.5",
            "source[1].queues",
            "1.5",
            not_of(WHOLE, "a number with a point"),
        ),
        ('"one.pcapng"', "7", "source[0].file", "7", not_of(TEXT, WHOLE)),
        (
            "betas = [0.9, 0.95]",
            "betas = [0.9]",
            "optimizer.betas",
            "[0.9]",
            like(WRONG_LENGTH, wanted=2),
        ),
        ("digests = true", "digests = 1", "digests", "1", not_of("true or false", WHOLE)),
    ],
)
def test_a_wrong_type_is_refused_with_its_key_and_what_would_be_right(
    tmp_path: Path, before: str, after: str, key: str, value: str, wanted: Wanted
) -> None:
    told = refused(tmp_path, GOOD.replace(before, after, 1), wanted, key=key, value=value)
    assert "`" not in str(told)


def test_a_key_that_is_left_out_and_must_not_be_is_named(tmp_path: Path) -> None:
    refused(tmp_path, GOOD.replace('name = "adamw"', ""), NAME_NOT_STATED)


@pytest.mark.parametrize(
    ("before", "after", "key", "right"),
    [
        ("slots = 4096", "slots = 4095", "ring.slots", RING_SLOTS),
        ("slots = 4096", "slots = 1", "ring.slots", RING_SLOTS),
        ("slots = 4096", "slot_bytes = 1000", "ring.slot_bytes", RING_SLOT_BYTES),
        ("speed = 2.5", "speed = 0", "source.speed", ABOVE(0)),
        ("speed = 2.5", "queues = 0", "source.queues", AT_LEAST(1)),
        ("speed = 2.5", "idle_us = -1", "source.idle_us", AT_LEAST(0)),
        ("speed = 2.5", 'interface = "e0"', "source", SEVERAL_SOURCE_KINDS),
        ('file = "one.pcapng"', "", "source.interface", ONE_SOURCE_KIND),
        ("1e-4", "-1.0", "optimizer.learning_rate", AT_LEAST(0)),
        (
            "1e-4",
            "1.0\nnesterov = true",
            "optimizer.nesterov",
            HAS_NO_SETTING("adamw", "nesterov"),
        ),
        (
            "1e-4",
            "1.0\nmomentum = 0.9",
            "optimizer.momentum",
            HAS_NO_SETTING("adamw", "momentum"),
        ),
        ("0.95]", "1.0]", "optimizer.betas", BETAS),
        (
            "[ring]",
            "[staging]\nsize_bytes = 5\n[ring]",
            "staging.size_bytes",
            AT_LEAST,
        ),
        ("digests = true", 'nccl = "2.x"', "nccl", like(VERSION, long="2.21.5")),
        (
            "[ring]",
            "[parse]\nicrc_every = -1\n[ring]",
            "parse.icrc_every",
            AT_LEAST(0),
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_what_would(
    tmp_path: Path, before: str, after: str, key: str, right: Wanted
) -> None:
    refused(tmp_path, GOOD.replace(before, after, 1), right, key=key)


def test_a_missing_optimizer_is_asked_for_never_guessed(tmp_path: Path) -> None:
    refused(
        tmp_path,
        GOOD.partition("[optimizer]")[0],
        NOT_STATED,
        key="optimizer",
    )


def test_a_job_without_a_source_is_refused(tmp_path: Path) -> None:
    optimizer = '[optimizer]\nname = "sgd"\nlearning_rate = 0.1'
    refused(tmp_path, optimizer, NO_SOURCE, key="source")
    refused(tmp_path, f"source = []\n{optimizer}", NO_SOURCE, key="source")


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    refused(tmp_path, "a = = b", NOT_TOML)
    with refused_as(FILE_MISSING, kind=ConfigError, file=re.compile(r"absent\.toml")):
        load_job(tmp_path / "absent.toml")
    (tmp_path / "job.toml").touch()
    with refused_as(UNREADABLE, kind=ConfigError, value=re.compile(r"job\.toml/below\.toml")):
        load_job(tmp_path / "job.toml" / "below.toml")
    (tmp_path / "binary.toml").write_bytes(b"\x00\xfe\x00")
    with refused_as(NOT_TEXT, kind=ConfigError):
        load_job(tmp_path / "binary.toml")


def test_settings_survive_the_run_directory(tmp_path: Path) -> None:
    config = load_job(job(tmp_path, GOOD))
    assert decode_config(encode_config(config)) == config


def test_settings_cannot_be_changed_once_read(tmp_path: Path) -> None:
    config = load_job(job(tmp_path, GOOD))
    with pytest.raises(AttributeError):
        config.digests = False  # type: ignore[misc]
    assert isinstance(config, JobConfig)
