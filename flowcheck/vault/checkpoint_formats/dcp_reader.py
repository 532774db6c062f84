"""Reads torch.distributed.checkpoint folders of any world size, unsharded and without running code.

.metadata is a pickle of a few classes of torch; the reader refuses other classes. Every shard is a
small archive of torch.save at an offset of a file, which torch's own reader of tensors and plain
values loads. Sources: torch/distributed/checkpoint/{metadata,filesystem,_nested_dict}.py.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import dcp_checkpoints as findings
from flowcheck.findings.catalog.unreadable_checkpoints import CANNOT_BE_READ
from flowcheck.findings.finding import Finding
from flowcheck.untrusted_paths import checked_file_name, refuse_special_file
from flowcheck.vault.safe_torch_load import (
    refuse_expanded,
    safe_torch_load_bytes,
    structure_errors_as_state_errors,
)

DCP_METADATA = ".metadata"
"""Name of the metadata file (torch/distributed/checkpoint/filesystem.py, _METADATA_FN)."""
_CHECKPOINT = "torch.distributed.checkpoint"
_KNOWN = {
    (f"{_CHECKPOINT}.metadata", name)
    for name in (
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
    ("pathlib._local", "PosixPath"),
}
METADATA_MAX_BYTES = 256 << 20
"""Most bytes of the metadata. A shard takes about 100 bytes, so that two million shards fit. The
time and memory to read a pickle grow with its size."""
KEY_PARTS_MAX = 64
"""Most texts and numbers in one key of a dictionary. A choice: trainers nest a few; it stops a
pickle that is made to cost time."""
VALUES_MAX = 64
"""Most arguments or attributes of an object, and dimensions of a tensor (torch allows 64). A pickle
can refer to an object again in a few bytes, which must not cost much time."""
NUMBER_BYTES_MAX = 40
"""Most bytes or digits of a whole number. A choice: 64 bits have 20 digits, and the time for a long
number grows with the square of its length."""


class _RefusedPickleError(pickle.UnpicklingError):
    """A pickle holds something that torch's metadata never does."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class _Record:
    """The arguments and attributes of a pickled object, in place of an instance of torch's
    class."""

    def __new__(cls, *args: Any) -> _Record:
        self = super().__new__(cls)
        self.__dict__["made_with"] = args
        return self

    def __init__(self, *args: Any) -> None:
        """Does nothing: a pickle may call `__new__` only, so that it does everything."""


def _anything(*_: Any) -> None:
    """Stands for classes and functions whose results are not used."""


def _dictionary(*args: Any) -> dict[Any, Any]:
    if args:
        raise _RefusedPickleError(findings.DICTIONARY_WITH_ARGUMENTS())
    return {}


def _size(*args: Any) -> tuple[int, ...]:
    (sizes,) = args
    if not isinstance(sizes, tuple | list) or len(sizes) > VALUES_MAX:
        raise _RefusedPickleError(findings.SHAPE_DIMENSIONS())
    if any(type(one) is not int for one in sizes):
        raise _RefusedPickleError(findings.SHAPE_NOT_WHOLE())
    return tuple(sizes)


def _key(key: Any) -> Any:
    """Checks that a key of a dictionary is not slow to compare, and returns it. A MetadataIndex
    becomes a tuple."""
    if type(key).__name__ == "MetadataIndex" and isinstance(key, _Record):
        offset = key.__dict__.get("offset")
        return _key((key.__dict__.get("fqn"), *(() if offset is None else offset)))
    plain = key if type(key) is tuple else (key,)
    if len(plain) > KEY_PARTS_MAX or any(type(one) not in (str, int, type(None)) for one in plain):
        raise _RefusedPickleError(findings.KEY_KIND(type(key).__name__))
    return key


class _MetadataUnpickler(pickle._Unpickler):
    """An unpickler that imports and calls nothing of torch. Each known class is replaced by one
    that only holds values; a dtype is torch's constant and takes no state.

    It is derived from the unpickler written in Python: the one in C reserves memory for as many
    objects as a damaged file states.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._kinds: dict[str, Any] = {
            "Size": _size,
            "OrderedDict": _dictionary,
            "_get_layout": _anything,
            "_MEM_FORMAT_ENCODING": _anything,
            "PosixPath": _anything,
            "Path": _anything,
        }

    def load_newobj(self) -> None:
        self._refuse_many(self.stack[-1])  # type: ignore[attr-defined]
        super().load_newobj()  # type: ignore[misc]

    def load_reduce(self) -> None:
        self._refuse_many(self.stack[-1])  # type: ignore[attr-defined]
        super().load_reduce()  # type: ignore[misc]

    def _refuse_many(self, values: Any) -> None:
        """Refuses a call with many arguments, since each call copies them."""
        if type(values) is not tuple or len(values) > VALUES_MAX:
            raise _RefusedPickleError(findings.ARGUMENTS_KIND(type(values).__name__))

    def load_long4(self) -> None:
        """Refuses a long number, which could be hashed or added again and again."""
        (size,) = struct.unpack("<i", self.read(4))  # type: ignore[attr-defined]
        if not 0 <= size <= NUMBER_BYTES_MAX:
            raise _RefusedPickleError(findings.NUMBER_TOO_LONG(size))
        self.append(pickle.decode_long(self.read(size)))  # type: ignore[attr-defined]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            if name not in self._kinds:
                self._kinds[name] = type(name, (_Record,), {})
            return self._kinds[name]
        found = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(found, torch.dtype):
            return found
        raise _RefusedPickleError(findings.WOULD_RUN_CODE(f"{module}.{name}"))

    def get_extension(self, code: int) -> None:
        raise _RefusedPickleError(findings.HOLDS_EXTENSION(code))

    def load_build(self) -> None:
        """Sets the state of a record; refuses a state for any other object."""
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        state = stack.pop()
        held = stack[-1]
        if not isinstance(held, _Record):
            raise _RefusedPickleError(findings.STATE_OF_KIND(type(held).__name__))
        if type(held).__name__ == "TensorProperties" and type(state) is tuple and state:
            state = {"dtype": state[0]}
        if (
            type(state) is not dict
            or len(state) > VALUES_MAX
            or any(type(key) is not str for key in state)
        ):
            raise _RefusedPickleError(findings.STATE_NOT_BY_NAME())
        held.__dict__.update(state)

    def load_setitem(self) -> None:
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        value, key = stack.pop(), stack.pop()
        self._put([key, value])

    def load_setitems(self) -> None:
        self._put(self.pop_mark())  # type: ignore[attr-defined]

    def _put(self, items: list[Any]) -> None:
        held = self.stack[-1]  # type: ignore[attr-defined]
        if type(held) is not dict:
            raise _RefusedPickleError(findings.ITEMS_INTO_KIND(type(held).__name__))
        for at in range(0, len(items), 2):
            held[_key(items[at])] = items[at + 1]

    def load_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self.append({})  # type: ignore[attr-defined]
        self._put(items)

    def refuse(self) -> None:
        raise _RefusedPickleError(findings.UNEXPECTED_OPCODE())

    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.LONG4[0]] = load_long4
    for _code in (pickle.INT, pickle.LONG, pickle.NEWOBJ_EX):  # of protocols that torch never used
        dispatch[_code[0]] = refuse
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    for _code in (pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[_code[0]] = refuse


@dataclass(frozen=True, slots=True)
class SavedItem:
    """A saved shard or value: a span of a file."""

    path: Path
    name: str
    first: int
    size_bytes: int

    @contextmanager
    def opened(self) -> Iterator[io.BytesIO]:
        """The bytes as a file object. Raises StateError if the file does not hold all of them."""
        with io.BytesIO(self.read()) as file:
            yield file

    def read(self) -> bytes:
        refuse_special_file(self.path)
        try:
            with self.path.open("rb") as file:
                file.seek(self.first)
                raw = file.read(self.size_bytes)
        except OSError as error:
            raise StateError(CANNOT_BE_READ(file=self.path, error=error.strerror)) from error
        if len(raw) != self.size_bytes:
            raise StateError(findings.FILE_CUT_OFF(self.path))
        return raw


def metadata_of(folder: Path) -> Any:
    """The Metadata of a folder. Raises StateError if the file is missing or not torch's
    metadata."""
    path = folder / DCP_METADATA
    refuse_special_file(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > METADATA_MAX_BYTES:
            raise StateError(findings.METADATA_TOO_LONG(file=path, limit=METADATA_MAX_BYTES))
        with path.open("rb") as file:
            found = _MetadataUnpickler(file).load()
    except OSError as error:
        raise StateError(CANNOT_BE_READ(file=path, error=error.strerror)) from error
    except StateError:
        raise
    except Exception as error:  # a torn pickle raises whatever its bytes say
        raise StateError(findings.INVALID_METADATA(file=path, error=error)) from error
    refuse_expanded(found, size_bytes, str(path))
    if type(found).__name__ != "Metadata" or not isinstance(
        getattr(found, "state_dict_metadata", None), dict
    ):
        raise StateError(findings.NO_METADATA(path))
    return found


def item_at(folder: Path, metadata: Any, key: str, offset: tuple[int, ...] | None) -> SavedItem:
    """Where a shard was saved, or a plain value if `offset` is None. Raises StateError if it was
    not saved or its place is invalid."""
    info = (metadata.storage_data or {}).get((key, *(() if offset is None else offset)))
    if info is None:
        if offset is None:
            raise StateError(findings.VALUE_NOT_SAVED(folder=folder, key=key))
        raise StateError(findings.SHARD_NOT_SAVED(folder=folder, key=key, offset=str(offset)))
    if getattr(info, "transform_descriptors", None):
        transforms = str(info.transform_descriptors)
        raise StateError(findings.TRANSFORMED(folder=folder, key=key, transforms=transforms))
    name, first, size_bytes = info.relative_path, info.offset, info.length
    checked_file_name(name, f"{folder}: {key}")
    if not (isinstance(first, int) and isinstance(size_bytes, int)) or min(first, size_bytes) < 0:
        raise StateError(findings.INVALID_PLACE(folder=folder, key=key, file=name))
    return SavedItem(folder / name, name, first, size_bytes)


def read_tree(folder: Path) -> dict[str, Any]:
    """The saved nested dictionary, with unsharded tensors. Raises StateError that names the tensor
    if a shard is missing or damaged, and for objects that are no tensors or plain values."""
    metadata = metadata_of(folder)
    with structure_errors_as_state_errors(str(folder / DCP_METADATA)):
        return _whole(folder, metadata)


def _whole(folder: Path, metadata: Any) -> dict[str, Any]:
    held_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    _refuse_overlaps(folder, (metadata.storage_data or {}).values())
    flat: dict[str, Any] = {}
    for key, told in metadata.state_dict_metadata.items():
        kind = type(told).__name__
        if kind == "BytesStorageMetadata":
            flat[key] = _loaded(item_at(folder, metadata, key, None), key)
        elif kind == "TensorStorageMetadata":
            flat[key] = _tensor(folder, metadata, key, told, held_bytes)
        else:
            raise StateError(findings.UNKNOWN_KIND(folder=folder, key=key, kind=kind))
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    return _nested(folder, flat, paths)


def _refuse_overlaps(folder: Path, infos: Iterable[Any]) -> None:
    """Raises StateError if shards overlap. Each shard is read by itself, so that thousands of
    overlapping shards would make a small file large."""
    sums: dict[str, int] = {}
    ends: dict[str, int] = {}
    for info in infos:
        name, end = info.relative_path, info.offset + info.length
        sums[name] = sums.get(name, 0) + info.length
        ends[name] = max(ends.get(name, 0), end)
    if within := [name for name, told in sums.items() if told > ends[name]]:
        file = f"{within[0]!r:.300}"
        raise StateError(findings.SHARDS_OVERLAP(folder=folder, file=file))


def _tensor(folder: Path, metadata: Any, key: str, told: Any, held_bytes: int) -> torch.Tensor:
    shape, dtype = tuple(told.size), told.properties.dtype
    if len(shape) > VALUES_MAX:
        many = findings.TOO_MANY_DIMENSIONS(folder=folder, key=key, dimensions=len(shape))
        raise StateError(many)
    if not isinstance(dtype, torch.dtype) or any(not isinstance(n, int) or n < 0 for n in shape):
        invalid = {"dtype": str(dtype), "shape": str(list(shape))}
        raise StateError(findings.INVALID_TENSOR(folder=folder, key=key, **invalid))
    elements = 1
    for size in shape:
        elements *= size
    if elements * dtype.itemsize > held_bytes:
        raise StateError(findings.LARGER_THAN_FILES(folder=folder, key=key, shape=str(list(shape))))
    whole: torch.Tensor | None = None
    filled = 0
    met: set[tuple[int, ...]] = set()
    for chunk in told.chunks:
        if (at := tuple(chunk.offsets)) in met:
            twice = findings.SHARD_TWICE(folder=folder, key=key, offset=str(list(at)))
            raise StateError(twice)
        met.add(at)
        part, ends = _shard(folder, metadata, key, dtype, chunk)
        if len(ends) != len(shape) or any(
            o < 0 or end > n for o, end, n in zip(chunk.offsets, ends, shape, strict=True)
        ):
            outside = findings.SHARD_OUTSIDE(folder=folder, key=key, shape=str(list(shape)))
            raise StateError(outside)
        filled += part.numel()
        if tuple(part.shape) == shape and len(told.chunks) == 1:
            return part
        whole = torch.empty(shape, dtype=dtype) if whole is None else whole
        whole[tuple(slice(o, e) for o, e in zip(chunk.offsets, ends, strict=True))] = part
    if filled != elements:
        missing = {"saved": filled, "elements": elements}
        raise StateError(findings.ELEMENTS_MISSING(folder=folder, key=key, **missing))
    return torch.empty(shape, dtype=dtype) if whole is None else whole


def _shard(
    folder: Path, metadata: Any, key: str, dtype: torch.dtype, chunk: Any
) -> tuple[torch.Tensor, list[int]]:
    """(one shard, where it ends along each dimension). Raises StateError where the file holds
    another tensor than the metadata says."""
    part = _loaded(item_at(folder, metadata, key, tuple(chunk.offsets)), key)
    if not isinstance(part, torch.Tensor) or part.dtype != dtype:
        raise StateError(findings.SHARD_DTYPE(folder=folder, key=key, dtype=str(dtype)))
    if tuple(part.shape) != tuple(chunk.sizes):
        shapes = {"shape": str(list(part.shape)), "listed": str(list(chunk.sizes))}
        raise StateError(findings.SHARD_SHAPE(folder=folder, key=key, **shapes))
    return part, [o + n for o, n in zip(chunk.offsets, chunk.sizes, strict=True)]


def _loaded(item: SavedItem, key: str) -> Any:
    raw = item.read()
    return safe_torch_load_bytes(raw, f"{item.path}: {key}")


def _nested(folder: Path, flat: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """planner_data tells the path of each flattened key; without it the keys are the paths."""
    tree: dict[Any, Any] = {}
    for key, value in flat.items():
        path = paths.get(key, (key,))
        if not isinstance(path, tuple) or not path:
            raise StateError(findings.INVALID_PATH(folder=folder, key=key, path=repr(path)))
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise StateError(findings.PATH_WITHIN_VALUE(folder=folder, key=key))
        node[path[-1]] = value
    listed: dict[str, Any] = _listed(tree)
    return {key: _optimizer_in(value) for key, value in listed.items()}


def _optimizer_in(node: Any) -> Any:
    """An optimizer's state that was saved flat, "state.NAME.KIND" and "param_groups.NAME.KEY" as
    get_optimizer_state_dict gives it with flatten_optimizer_state_dict, as it is otherwise."""
    begins = ("state.", "param_groups.")
    if (
        not isinstance(node, dict)
        or not node
        or not all(isinstance(key, str) and key.startswith(begins) for key in node)
    ):
        return node
    parts: dict[str, dict[str, dict[str, Any]]] = {"state": {}, "param_groups": {}}
    for key, value in node.items():
        part, _, rest = key.partition(".")
        name, _, kind = rest.rpartition(".")
        parts[part].setdefault(name, {})[kind] = value
    groups: list[dict[str, Any]] = []
    for name, own in parts["param_groups"].items():
        for group in groups:
            if {k: v for k, v in group.items() if k != "params"} == own:
                group["params"].append(name)
                break
        else:
            groups.append({**own, "params": [name]})
    return {"state": parts["state"], "param_groups": groups}


def _listed(node: Any) -> Any:
    """The tree with lists in place of dictionaries whose keys are 0, 1, 2, ..."""
    if not isinstance(node, dict):
        return node
    inside = {key: _listed(value) for key, value in node.items()}
    if (
        inside
        and all(isinstance(k, int) for k in inside)
        and sorted(inside) == list(range(len(inside)))
    ):
        return [inside[place] for place in range(len(inside))]
    return inside
