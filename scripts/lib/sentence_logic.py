"""Program logic touches no English sentence: facts are codes (flowcheck/findings).

Reads flowcheck/ and reports where a sentence is compared or searched, and where a record stores a
reason as text. `scripts/check` runs it; exit code 1 where something is found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
READS_ENGLISH = {
    "findings/catalog/earlier_files.py": "sentences of earlier versions become codes here",
    "findings/finding.py": "a finding carries its sentence, for people",
}
"""Files that may look at sentences, and why."""
OF_EARLIER_FILES = "_Sentences"
"""Begins the names of records of earlier versions, whose reasons were text."""
FOREIGN = {"Tried to step"}
"""Texts of torch's and the kernel's own that tell what went wrong where no type does."""
SEARCHES = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "find",
    "index",
    "replace",
    "partition",
    "rpartition",
    "split",
    "count",
    "search",
    "fullmatch",
    "match",
}
STORED = {"why", "reason", "sentence", "assumed", "evidence", "why_not", "refused", "note", "notes"}
"""Fields that hold facts: their type is Finding, not text."""
WORDS_MIN = 3


def is_sentence(text: object) -> bool:
    """Words for people: three or more, mostly letters, no pattern, path or command."""
    if not isinstance(text, str) or any(mark in text for mark in ("\\", "/", "=", "<", "\n", "%")):
        return False
    words = [word.strip(".,:;()'\"") for word in text.split()]
    return sum(word.isalpha() and word.islower() for word in words) >= WORDS_MIN


def constants(tree: ast.Module) -> dict[str, str]:
    """{name: text} of the module's constants that are sentences."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = text_of(node.value)
            if is_sentence(text):
                found[node.targets[0].id] = str(text)
    return found


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return " ".join(map(str, parts))
    return None


class Reader:
    """One module; `known` are the sentences of all modules by (module, name)."""

    def __init__(self, path: Path, tree: ast.Module, known: dict[tuple[str, str], str]) -> None:
        self._path, self._tree = path, tree
        self._names = constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    if (text := known.get((node.module, name.name))) is not None:
                        self._names[name.asname or name.name] = text

    def _sentence(self, node: ast.AST) -> str | None:
        """What sentence an expression is, or holds as one of several."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return next(filter(None, map(self._sentence, node.elts)), None)
        text = text_of(node)
        return text if is_sentence(text) and text not in FOREIGN else None

    def problems(self) -> Iterator[tuple[int, str]]:
        """(line, what is wrong)."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare):
                for side in (node.left, *node.comparators):
                    if text := self._sentence(side):
                        yield node.lineno, f"compares a sentence: {text[:60]!r}"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                searched = [*node.args, node.func.value] if node.func.attr in SEARCHES else []
                for one in searched:
                    if text := self._sentence(one):
                        yield node.lineno, f"searches a sentence: {text[:60]!r}"
            elif isinstance(node, ast.MatchValue) and (text := self._sentence(node.value)):
                yield node.value.lineno, f"matches a sentence: {text[:60]!r}"
            elif isinstance(node, ast.ClassDef) and not node.name.startswith(OF_EARLIER_FILES):
                yield from self._stored(node)

    def _stored(self, node: ast.ClassDef) -> Iterator[tuple[int, str]]:
        for field in node.body:
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            kind = ast.unparse(field.annotation)
            if field.target.id in STORED and "str" in kind.replace("StrEnum", ""):
                yield field.lineno, f"{node.name}.{field.target.id} stores text ({kind}): a Finding"


def check(package: Path = PACKAGE) -> list[str]:
    """Every place, as FILE:LINE: what is wrong."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    known = {}
    for path, tree in trees.items():
        module = ".".join((package.name, *path.relative_to(package).with_suffix("").parts))
        known |= {(module, name): text for name, text in constants(tree).items()}
    found = []
    for path, tree in trees.items():
        if str(path.relative_to(package)) not in READS_ENGLISH:
            problems = Reader(path, tree, known).problems()
            found += [f"{path.relative_to(package.parent)}:{at}: {what}" for at, what in problems]
    return found


if __name__ == "__main__":
    wrong = check()
    print("\n".join(wrong))
    sys.exit(bool(wrong))
