"""The house rule on imports, read from the source: arrows point downward only."""

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
OUTSIDE = (
    "untrusted_paths",
    "private_files",
    "step_numbers",
    "findings",
    "closing_context",
    "foreign_messages",
    "checkpoint_signatures",
    "untrusted_text",
)
"""Of names, files and texts that others made: below every room but what is pure."""
MAY_IMPORT = {
    "findings": {"findings"},
    "hook": {"hook"},
    "optimizer_rules": {"optimizer_rules", "findings", "_core"},
    "fleet": {"fleet", "config", "errors", "findings", "untrusted_text"},
    "wire": {"wire", "errors", "findings", "step_numbers"},
    "plane": {
        "plane",
        "closing_context",
        "wire",
        "errors",
        "findings",
        "step_numbers",
        "private_files",
        "checkpoint_signatures",
        "untrusted_text",
        "_core",
        "_dpdk",
    },
    "replica": {
        "replica",
        "plane",
        "wire",
        "errors",
        "atomic_write",
        "config",
        "optimizer_rules",
        "_core",
        *OUTSIDE,
    },
    "vault": {
        "vault",
        "replica",
        "plane",
        "wire",
        "errors",
        "atomic_write",
        "config",
        "optimizer_rules",
        "_isal",
        "_core",
        *OUTSIDE,
    },
    "stages": {
        "stages",
        "hook",
        "vault",
        "replica",
        "plane",
        "wire",
        "findings",
        "errors",
        "atomic_write",
        "config",
        "optimizer_rules",
        "messages",
        "_core",
        *OUTSIDE,
    },
    "ops": {
        "ops",
        "fleet",
        "stages",
        "vault",
        "replica",
        "plane",
        "wire",
        "errors",
        "atomic_write",
        "config",
        "optimizer_rules",
        "messages",
        "_core",
        "_dpdk",
        *OUTSIDE,
    },
    "lab/roce_backend": {"lab", "_lab"},
}
"""The lab as a whole may use anything; what it loads inside a trainer may not."""
NEVER = {
    "optimizer_rules": {"torch", "zmq"},
    "fleet": {"torch", "zmq"},
    "wire": {"torch", "zmq"},
    "plane": {"torch", "zmq"},
    "lab": {"zmq"},
}


def imports(path: Path) -> tuple[str, ...]:
    return _imports_of(path.read_text())


@cache
def _imports_of(source: str) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(source)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_downward_only() -> None:
    wrong = []
    for room, allowed in MAY_IMPORT.items():
        for path in (PACKAGE / room).rglob("*.py"):
            for name in imports(path):
                parts = name.split(".")
                inside = parts[0] == "flowcheck" and len(parts) > 1
                if inside and parts[1] not in allowed | {"__version__"}:
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
                if parts[0] in NEVER.get(room, set()):
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_a_trainer_loads_nothing_of_ours_but_its_own_room_and_nobody_imports_the_lab() -> None:
    inside = {
        f"{path.name} imports {name}"
        for path in (PACKAGE / "lab/roce_backend").rglob("*.py")
        for name in imports(path)
        if name.startswith("flowcheck.lab.") and not name.startswith("flowcheck.lab.roce_backend")
    }
    outside = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("lab", "cli")
        for name in imports(path)
        if name.startswith("flowcheck.lab")
    }
    assert inside | outside == set()


def test_only_links_imports_zmq_and_nothing_sleeps() -> None:
    sockets, sleepers = [], []
    for path in PACKAGE.rglob("*.py"):
        if "zmq" in {name.split(".")[0] for name in imports(path)}:
            sockets.append(str(path.relative_to(PACKAGE)))
        if "time.sleep(" in path.read_text():
            sleepers.append(str(path.relative_to(PACKAGE)))
    assert sockets == ["stages/zmq_sockets.py"]
    assert sleepers == []


def test_rooms_of_learning_import_only_what_lies_below_them() -> None:
    order = ("flows", "cuts", "trainer", "search", "align", "verdict", "jobs")
    learn = PACKAGE / "wire/learn"
    assert {path.name for path in learn.iterdir() if (path / "__init__.py").exists()} == set(order)
    wrong = [
        f"{path.relative_to(learn)} imports {name}"
        for height, room in enumerate(order)
        for path in (learn / room).glob("*.py")
        for name in imports(path)
        for above in (*order[height + 1 :], "read")
        if f"{name}.".startswith(f"flowcheck.wire.learn.{above}.")
    ]
    assert wrong == []


def test_a_base_name_stands_once_in_the_package() -> None:
    """wire/learn keeps its names until it is replaced."""
    same_role = {"__init__", "__main__"}
    where: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.stem not in same_role and "learn" not in path.relative_to(PACKAGE).parts:
            where.setdefault(path.stem, []).append(str(path.relative_to(PACKAGE)))
    assert [paths for paths in where.values() if len(paths) > 1] == []


def uses_in(room: Path, dotted: str) -> dict[str, set[str]]:
    """{part of the room: other parts of it that its files import, also inside functions}; a part is
    a folder or a module. dotted: the room's name in imports."""
    parts = {path.stem for path in room.glob("*.py")} | {
        path.name for path in room.iterdir() if path.is_dir()
    }
    uses: dict[str, set[str]] = {}
    for path in room.rglob("*.py"):
        own = path.relative_to(room).with_suffix("").parts[0]
        for name in imports(path):
            part = name.removeprefix(f"{dotted}.").split(".")[0]
            if name.startswith(f"{dotted}.") and part in parts - {own}:
                uses.setdefault(own, set()).add(part)
    return uses


@pytest.mark.parametrize("room", ["ops", "fleet", "vault", "replica", "plane", "wire", "stages"])
def test_parts_of_a_room_import_one_another_one_way_only(room: str) -> None:
    graphlib.TopologicalSorter(uses_in(PACKAGE / room, f"flowcheck.{room}")).prepare()


def test_the_order_of_the_stages_is_the_one_that_their_page_tells() -> None:
    uses = uses_in(PACKAGE / "stages", "flowcheck.stages")
    order = [*graphlib.TopologicalSorter(uses).static_order()]
    assert order.index("run_directory") < order.index("job_state") < order.index("supervisor")


def test_a_cycle_between_parts_of_a_room_is_found(tmp_path: Path) -> None:
    for part, line in (("one", "import flowcheck.made.two.file"), ("two", "")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "file.py").write_text(line)
    graphlib.TopologicalSorter(uses_in(tmp_path, "flowcheck.made")).prepare()
    late = "def later() -> None:\n    from flowcheck.made import one\n"
    (tmp_path / "two/other.py").write_text(late)
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(uses_in(tmp_path, "flowcheck.made")).prepare()
