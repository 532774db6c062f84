"""Program logic touches no English sentence: facts are codes (flowcheck/findings).

Reads flowcheck/ and reports where a sentence is compared or searched, where the text of somebody
else's error is, and where a record stores a reason as text. `scripts/check` runs it; exit code 1
where something is found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
READS_ENGLISH = {
    "findings/catalog/earlier_files.py": "sentences of earlier versions become codes here",
    "findings/finding.py": "a finding carries its sentence, for people",
    "foreign_messages.py": "texts of other libraries that give no code stand there alone",
    "wire/learn/jobs/sharding/parted_content.py": "compares what a collective means, a text yet",
    "wire/learn/search/parted.py": "likewise",
    "wire/learn/verdict/doubt.py": "likewise",
}
"""Files that may look at sentences, and why."""
OF_EARLIER_FILES = "_Sentences"
"""Begins the names of records of earlier versions, whose reasons were text."""
FOREIGN = "flowcheck.foreign_messages"
"""The module of other libraries' texts: what is searched in the text of an error is of there."""
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
MAKE_TEXT = {"replace", "split"}
"""Of these what makes another text, and as such judges nothing."""
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
    """{name: text} of what is named in a module, or in a class of it (CLASS.NAME), and is a
    sentence. A name that stands for several, or for one by way of another name, as well."""
    found: dict[str, str] = {}
    _name_sentences(tree, "", found)
    return found


def _name_sentences(scope: ast.Module | ast.ClassDef, before: str, found: dict[str, str]) -> None:
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and not _is_enum(node):
            _name_sentences(node, f"{before}{node.name}.", found)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _named(target, node.value):
                    _note(f"{before}{name}", value, found)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            _note(f"{before}{node.target.id}", node.value, found)


def _is_enum(node: ast.ClassDef) -> bool:
    """Its members are compared, not their texts."""
    return any(dotted(base).endswith("Enum") for base in node.bases)


def _named(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Of `A = x` and of `A, B = x, y`."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _named(one, part)


def _note(name: str, value: ast.expr, found: dict[str, str]) -> None:
    parts = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]
    for part in parts:
        text = found.get(dotted(part)) or text_of(part)
        if is_sentence(text):
            found[name] = str(text)


def dotted(node: ast.AST) -> str:
    """`Kind.FULL` as that; "" of what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return " ".join(map(str, parts))
    return None


Problem = tuple[int, str]


class _Texts:
    """What in a function is the text of an error."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*function.args.args, *function.args.kwonlyargs]
        self._errors = {
            one.arg
            for one in arguments
            if one.annotation and re.search(r"(Error|Exception)\b", ast.unparse(one.annotation))
        }
        self._errors |= {
            one.name
            for one in ast.walk(function)
            if isinstance(one, ast.ExceptHandler) and one.name
        }
        self._names = set[str]()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and self.has(node.value):
                self._names |= {one.id for one in node.targets if isinstance(one, ast.Name)}

    def has(self, node: ast.AST) -> bool:
        """Whether an expression is such a text, or is made of one."""
        match node:
            case ast.Name(id=name):
                return name in self._names
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
                return name in self._errors
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Attribute(value=of)]):
                return isinstance(of, ast.Name) and of.id in self._errors
            case ast.FormattedValue(value=ast.Name(id=name)):
                return name in self._errors or name in self._names
            case ast.JoinedStr(values=parts):
                return any(map(self.has, parts))
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args):
                made = name not in SEARCHES - MAKE_TEXT
                return made and (self.has(of) or (name == "join" and any(map(self.has, args))))
            case ast.Subscript(value=of):
                return self.has(of)
        return False


class Reader:
    """One module; `known` are the sentences of all modules by (module, name)."""

    def __init__(self, path: Path, tree: ast.Module, known: dict[tuple[str, str], str]) -> None:
        self._path, self._tree = path, tree
        self._names = constants(tree)
        self._foreign = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    own = name.asname or name.name
                    for (module, known_as), text in known.items():
                        if module == node.module and known_as.partition(".")[0] == name.name:
                            self._names[own + known_as[len(name.name) :]] = text
                    if FOREIGN in (node.module, f"{node.module}.{name.name}"):
                        self._foreign.add(own)

    def _sentence(self, node: ast.AST) -> str | None:
        """What sentence an expression is, or holds as one of several."""
        if name := dotted(node):
            return self._names.get(name)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return next(filter(None, map(self._sentence, node.elts)), None)
        text = text_of(node)
        return text if is_sentence(text) else None

    def problems(self) -> Iterator[Problem]:
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
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._error_texts(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith(OF_EARLIER_FILES):
                yield from self._stored(node)

    def _error_texts(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Problem]:
        """Where the text of an error is searched for something that is not of FOREIGN."""
        texts = _Texts(function)
        for node in ast.walk(function):
            sides: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                judges = node.func.attr in SEARCHES - MAKE_TEXT
                sides = [*node.args, node.func.value] if judges else []
            others = [one for one in sides if not texts.has(one)]
            if len(others) < len(sides) and not any(map(self._is_foreign, others)):
                yield node.lineno, f"reads the text of an error: {ast.unparse(node)[:60]}"

    def _is_foreign(self, node: ast.AST) -> bool:
        return dotted(node).partition(".")[0] in self._foreign

    def _stored(self, node: ast.ClassDef) -> Iterator[Problem]:
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
