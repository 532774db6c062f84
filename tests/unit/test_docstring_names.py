"""Names that a docstring puts between backticks exist: a rename renames them there, too."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
A_NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?", re.ASCII)
A_FILE = re.compile(r"[\w/-]+\.(?:py|c|h|j2|md)", re.ASCII)
NO_NAMES = {"subject.what", "_ns"}
"""The form of a code, and the end of a name."""


@dataclass
class Names:
    """What the code of a package binds or uses; its docstrings and comments do not count."""

    used: set[str] = field(default_factory=set)
    """Identifiers, and words of texts that are no docstrings: keys, options, paths."""
    classes: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)
    """{class: (what it has itself, names of its bases)}; of one name all together."""
    docstrings: list[tuple[str, str]] = field(default_factory=list)
    """(file:line, text)"""

    def has(self, name: str) -> bool:
        head, *members = name.removesuffix("()").split(".")
        if head in self.classes and members:
            return members[0] in self._members(head)
        # A class with a member is one of ours: others' are written out in words.
        if members and head[0].isupper() and not head.isupper():
            return False
        return all(part in self.used for part in (head, *members) if part)

    def _members(self, name: str) -> set[str]:
        own, bases = self.classes.get(name, (set(), set()))
        return own.union(*(self._members(base) for base in bases - {name}))


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts that are statements: of modules, classes, functions, and behind names."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            match one:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text


def _bound(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
            return {name}
        case ast.alias(name=name, asname=other):
            return {*name.split("."), *([other] if other else [])}
    return set()


def _members_of(node: ast.ClassDef) -> set[str]:
    found = set[str]()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return found


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base).split("[")[0].split(".")[-1]


def names_of(root: Path, package: str, *, c_code: str | None = None) -> Names:
    """Of all files but those of wire/learn, which is being replaced: of it only classes that others
    use."""
    found, replaced = Names(), Names()
    for path in sorted((root / package).rglob("*.py")):
        place = path.relative_to(root)
        found.used.update(place.with_suffix("").parts)
        tree = ast.parse(path.read_text())
        if "learn" in place.parts:
            _add_classes(replaced, tree)
            continue
        _add_classes(found, tree)
        own = {id(one): one for one in docstrings(tree)}
        found.docstrings += [(f"{place}:{one.lineno}", str(one.value)) for one in own.values()]
        for node in ast.walk(tree):
            found.used |= _bound(node)
            match node:
                case ast.Constant(value=str() as text) if id(node) not in own:
                    found.used.update(WORD.findall(text))
    for path in (root / c_code).rglob("*.[ch]") if c_code is not None else ():
        found.used.update(WORD.findall(path.read_text()))
    for name in replaced.classes.keys() & found.used - found.classes.keys():
        found.classes[name] = replaced.classes[name]
    return found


def _add_classes(names: Names, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            members, bases = names.classes.setdefault(node.name, (set(), set()))
            members |= _members_of(node)
            bases |= set(map(_base_name, node.bases))


def unknown(names: Names, files: set[str]) -> list[str]:
    """file:line and name of what docstrings name and nothing has."""
    return [
        f"{where} {name}"
        for where, text in names.docstrings
        for name in re.findall(r"`([^`\n]+)`", text)
        if name not in NO_NAMES
        and not (A_FILE.fullmatch(name) and name in files)
        and (A_FILE.fullmatch(name) or (A_NAME.fullmatch(name) and not names.has(name)))
    ]


def files_of(root: Path, *folders: str) -> set[str]:
    """Every file, by each end of its path."""
    paths = (path.relative_to(root) for top in folders for path in (root / top).rglob("*.*"))
    return {"/".join(path.parts[at:]) for path in paths for at in range(len(path.parts))}


def test_a_docstring_names_only_what_exists() -> None:
    names = names_of(ROOT, "flowcheck", c_code="dpdk_ext")
    assert len(names.docstrings) > 5000
    files = files_of(ROOT, "flowcheck", "dpdk_ext", "scripts", "switch_configs")
    assert unknown(names, files) == []


def test_what_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.py").write_text(
        '"""`Kept`, `Kept.there`, `Kept.gone`, `Gone`, `Gone.x`, `p/a.py`, `p/b.py`, `a key`."""\n'
        "class Base:\n    there: int\n\nclass Kept(Base):\n"
        '    """`there`, `do()`, `gone_too()`, `"key"`, `key`."""\n'
        '    def do(self, key="key"): ...  # Gone, gone_too\n'
    )
    told = unknown(names_of(tmp_path, "p"), files_of(tmp_path, "p"))
    gone = ["Kept.gone", "Gone", "Gone.x", "p/b.py"]
    assert told == [*(f"p/a.py:1 {name}" for name in gone), "p/a.py:6 gone_too()"]
