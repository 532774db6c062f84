"""Checkpoints that somebody else made, changed in their structure: each is read as what it says or
refused with a sentence, whichever verb reads it; nothing of it runs or lands elsewhere."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import pickletools
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.formatted import fill, step_before
from support.hostile import LONG, QUICK, WEIRD, changed, hostile_json, told_or_refused, torn
from support.steps import layout_of, made, trained

import flowcheck
from flowcheck.ops.restore.step_lookup import step_in_checkpoint
from flowcheck.ops.restore.verify_command import run as verify
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

LAYOUT = layout_of(made()[0])
SEAL = {"seal": "0" * 64}


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


@pytest.fixture(scope="module")
def whole(step: CheckpointContents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step in every format, as FlowCheck writes it; trainers.pt as a trainer does."""
    out = tmp_path_factory.mktemp("whole")
    for form in ("flowcheck", "torch", "dcp", "safetensors", "huggingface", "deepspeed"):
        write(step, out / form, form)
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    torch.save(tree, out / "trainers.pt")
    place = out / "megatron" / "iter_0000003" / "mp_rank_00"
    place.mkdir(parents=True)
    torch.save({**tree, "iteration": 3}, place / "model_optim_rng.pt")
    (out / "megatron" / "latest_checkpointed_iteration.txt").write_text("3")
    for form in ("flowcheck", "dcp", "torch"):  # what is loaded late is loaded now
        used(out / form, out)
    return out


@contextmanager
def copied(of: Path, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as below:
        place = Path(below) / name
        if (of / name).is_dir():
            shutil.copytree(of / name, place)
        else:
            shutil.copyfile(of / name, place)
        yield place


def used(path: Path, whole: Path) -> None:
    """All that verbs do with a checkpoint that is named to them."""
    below = path.parent

    def loaded() -> None:
        flowcheck.load(path)

    def filled_like() -> None:
        read_template(read(path), LAYOUT, (), str(path))

    def given_as() -> None:
        out = below / "out.pt"
        write(step_in_checkpoint(path).contents("torch"), out, "torch", force=True)

    def given_like() -> None:
        fill(step_in_checkpoint(path), whole / "trainers.pt", below / "out2.pt")

    def verified() -> None:
        verify(path, as_json=True)

    cache = Path("/dev/shm")
    for verb in (loaded, filled_like, given_as, given_like, verified):
        told_or_refused(verb, below, cache)


def sealed(tree: Any) -> bytes:
    """A manifest whose own sum is right, whoever made it."""
    if not isinstance(tree, dict):
        return json.dumps(tree).encode()
    tree = {key: value for key, value in tree.items() if key != "seal"}
    text = json.dumps({**tree, **SEAL}, indent=1).encode() + b"\n"
    own = hashlib.sha256(text).hexdigest().encode()
    return text[: -len(b'0"\n}\n') - 63] + own + text[-len(b'"\n}\n') :]


@st.composite
def manifests(draw: st.DrawFn, raw: bytes) -> bytes:
    if draw(st.integers(0, 4)) == 0:
        return draw(torn(raw))
    return sealed(draw(changed(json.loads(raw))))


def manifest_of_ours(whole: Path, data: st.DataObject) -> None:
    with copied(whole, "flowcheck") as folder:
        own = folder / "manifest.json"
        own.write_bytes(data.draw(manifests(own.read_bytes())))
        used(folder, whole)


def manifest_of_another_format(whole: Path, data: st.DataObject) -> None:
    with copied(whole, data.draw(st.sampled_from(["dcp", "huggingface", "deepspeed"]))) as folder:
        own = folder / "manifest.json"
        own.write_bytes(data.draw(manifests(own.read_bytes())))
        used(folder, whole)


def header(raw: bytes) -> tuple[Any, bytes]:
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


@st.composite
def safetensors(draw: st.DrawFn, raw: bytes) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return draw(torn(raw))
    tree, rest = header(raw)
    text = json.dumps(draw(changed(tree))).encode()
    size = draw(st.one_of(st.just(len(text)), st.integers(0, 2**64 - 1)))
    return size.to_bytes(8, "little") + text + rest


def tensors_under_sums_of_their_own(whole: Path, data: st.DataObject) -> None:
    """A manifest names no tensors and the sum of each file as it is now."""
    with copied(whole, "flowcheck") as folder:
        name = data.draw(st.sampled_from(["model.safetensors", "optimizer.safetensors"]))
        (folder / name).write_bytes(data.draw(safetensors((folder / name).read_bytes())))
        told = json.loads((folder / "manifest.json").read_bytes())
        for file in told["files"]:
            held = (folder / file).read_bytes()
            own = hashlib.sha256(held).hexdigest()
            told["files"][file] = {"bytes": len(held), "sha256": own, "around": own}
        (folder / "manifest.json").write_bytes(sealed({**told, "tensors": {}}))
        used(folder, whole)


def tensors_without_a_manifest(whole: Path, data: st.DataObject) -> None:
    with copied(whole, "huggingface") as folder:
        (folder / "manifest.json").unlink()
        own = folder / "model.safetensors"
        own.write_bytes(data.draw(safetensors(own.read_bytes())))
        if data.draw(st.booleans()):
            index = {"metadata": {}, "weight_map": {"inner.weight": "model.safetensors"}}
            told = hostile_json(json.dumps(index).encode())
            (folder / "model.safetensors.index.json").write_bytes(data.draw(told))
        if data.draw(st.booleans()):
            told = hostile_json(b'{"global_step": 3}')
            (folder / "trainer_state.json").write_bytes(data.draw(told))
        used(folder, whole)


@st.composite
def pickled(draw: st.DrawFn, raw: bytes) -> bytes:
    """A pickle, some of whose opcodes are gone, doubled, exchanged, or of other arguments."""
    ends = [at for _, _, at in pickletools.genops(raw)] + [len(raw)]
    codes = [raw[a:b] for a, b in itertools.pairwise(ends)]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(codes) - 1))
        match draw(st.sampled_from(["gone", "twice", "other", "swap", "made"])):
            case "gone" if len(codes) > 1:
                del codes[at]
            case "twice":
                codes.insert(at, codes[at])
            case "other":
                codes[at] = codes[draw(st.integers(0, len(codes) - 1))]
            case "swap":
                to = draw(st.integers(0, len(codes) - 1))
                codes[at], codes[to] = codes[to], codes[at]
            case _:
                codes[at] = draw(st.sampled_from(OPCODES))
    return b"".join(codes)


OPCODES = (
    *(b"cos\nsystem\n", b"cbuiltins\neval\n", b"ctorch\nload\n", b"ctorch._utils\n_rebuild\n"),
    *(b"cbuiltins\nbytearray\n", b"ctorch.hub\nload\n", b"\x93", b"R", b"b", b"u", b"s", b"e"),
    *(b"o", b"\x81", b"Q", b"Pabc\n", b"(", b"0", b"1", b"2", b"}", b"]", b")", b"N", b"\x85"),
    *(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"J\xff\xff\xff\xff", b"h\x00", b"q\xff"),
    *(b"\x8b\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f", b"T\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f"),
    *(b"X\x03\0\0\0a/b", b"X\x02\0\0\0..", b"\x82\x01", b"\x8f", b"\x91", b"\x95" + b"\xff" * 8),
)
"""Others than those of a file: to call what was not asked for, and of sizes that no file has."""


def metadata_of_dcp(whole: Path, data: st.DataObject) -> None:
    with copied(whole, "dcp") as folder:
        (folder / "manifest.json").unlink()
        own = folder / ".metadata"
        raw = own.read_bytes()
        own.write_bytes(data.draw(st.one_of(pickled(raw), torn(raw))))
        used(folder, whole)


@st.composite
def archives(draw: st.DrawFn, raw: bytes) -> bytes:
    """A file of torch.save: another pickle in it, records that are gone, named or sized otherwise,
    or packed."""
    if draw(st.integers(0, 4)) == 0:
        return draw(torn(raw))
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for one in old.namelist():
            held, name = old.read(one), one
            if one.endswith("data.pkl") and draw(st.booleans()):
                held = draw(pickled(held))
            match draw(st.sampled_from(["as it is"] * 6 + ["gone", "torn", "named", "packed"])):
                case "gone":
                    continue
                case "torn":
                    held = draw(torn(held))
                case "named":
                    name = draw(st.sampled_from(["../x", "/x", "archive/data/0", "a/.format"]))
                case "packed" if one not in new.namelist():
                    new.writestr(name, held, zipfile.ZIP_DEFLATED)
                    continue
            if name not in new.namelist():
                new.writestr(name, held)
    return out.getvalue()


def files_of_torch(whole: Path, data: st.DataObject) -> None:
    with copied(whole, "trainers.pt") as file:
        file.write_bytes(data.draw(archives(file.read_bytes())))
        used(file, whole)


def folders_of_torch_files(whole: Path, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["deepspeed", "megatron", "dcp"]))
    with copied(whole, form) as folder:
        (folder / "manifest.json").unlink(missing_ok=True)
        files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".metadata"]
        file = data.draw(st.sampled_from(sorted(files)))
        raw = file.read_bytes()
        is_archive = zipfile.is_zipfile(file) and form != "dcp"
        file.write_bytes(data.draw(archives(raw) if is_archive else torn(raw)))
        used(folder, whole)


ODD: tuple[Callable[[], Any], ...] = (
    lambda: torch.zeros(3).double(),
    lambda: torch.zeros(30),
    lambda: torch.zeros(5, 6, 1),
    lambda: torch.zeros(1).expand(1 << 40),
    lambda: torch.zeros(1).expand(5, 6),
    lambda: torch.empty(0),
    lambda: torch.empty(5, 6, device="meta"),
    lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (5,)),
    lambda: torch.quantize_per_tensor(torch.zeros(5), 0.1, 0, torch.qint8),
    lambda: torch.nn.Parameter(torch.ones(5)),
    lambda: torch.zeros(5, 6).to(torch.complex64),
    lambda: torch.zeros(5, 6).to(torch.float8_e4m3fn),
    lambda: torch.full((5, 6), float("nan")),
    lambda: torch.tensor(2**62),
)
"""Tensors of other kinds, shapes and types than a trainer's."""


@dataclass(frozen=True)
class Leaf:
    """In place of a tensor while a tree is changed: of the trainer's, or of ODD."""

    number: int
    odd: bool = False


ODD_LEAVES = st.one_of(WEIRD, st.integers(0, len(ODD) - 1).map(lambda n: Leaf(n, odd=True)))


def leaves(node: Any, found: list[Any]) -> Any:
    """The tree without its tensors, which are added to `found`."""
    if isinstance(node, dict):
        return {key: leaves(value, found) for key, value in node.items()}
    if isinstance(node, list):
        return [leaves(value, found) for value in node]
    if isinstance(node, torch.Tensor):
        found.append(node)
        return Leaf(len(found) - 1)
    return node


def grown(node: Any, found: list[Any]) -> Any:
    """The reverse."""
    if isinstance(node, dict):
        return {key: grown(value, found) for key, value in node.items()}
    if isinstance(node, list):
        return [grown(value, found) for value in node]
    if isinstance(node, Leaf):
        return ODD[node.number]() if node.odd else found[node.number]
    return node


def trees_of_a_trainer(whole: Path, data: st.DataObject) -> None:
    found: list[Any] = []
    tree = leaves(torch.load(whole / "trainers.pt", weights_only=True), found)
    told = data.draw(changed(tree, ODD_LEAVES))
    with tempfile.TemporaryDirectory() as below:
        path = Path(below) / "trainers.pt"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(grown(told, found), path)
        used(path, whole)
        step = step_in_checkpoint(whole / "flowcheck")
        told_or_refused(
            lambda: fill(step, path, Path(below) / "out.pt"), Path(below), Path("/dev/shm")
        )


KINDS: tuple[Callable[[Path, st.DataObject], None], ...] = (
    manifest_of_ours,
    manifest_of_another_format,
    tensors_under_sums_of_their_own,
    tensors_without_a_manifest,
    metadata_of_dcp,
    files_of_torch,
    folders_of_torch_files,
    trees_of_a_trainer,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@QUICK
@given(data=st.data())
def test_a_hostile_checkpoint_is_read_or_refused(
    whole: Path, kind: Callable[[Path, st.DataObject], None], data: st.DataObject
) -> None:
    kind(whole, data)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(LONG)
@given(data=st.data())
def test_a_hostile_checkpoint_is_read_or_refused_at_length(
    whole: Path, kind: Callable[[Path, st.DataObject], None], data: st.DataObject
) -> None:
    kind(whole, data)
