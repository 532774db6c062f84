"""The check that no program logic touches an English sentence finds what it should."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    path = REPOSITORY / "scripts/lib/sentence_logic.py"
    spec = importlib.util.spec_from_file_location("sentence_logic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_of_the_package_reads_a_sentence(checker: ModuleType) -> None:
    assert checker.check() == []


TRYING = "def f():\n    try: g()\n    except OSError as error:\n        "
FOREIGN = "from flowcheck.foreign_messages import GONE\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('LOST = "the step was lost"\ndef f(why): return why == LOST', "compares"),
        ('def f(why): return why in ("the step was lost", "ok")', "compares"),
        ('def f(why): return why.startswith("nothing of it came")', "searches"),
        ('def f(why): return "never came at all" in why', "compares"),
        ("from lost import WHY\ndef f(told): return told.endswith(WHY)", "searches"),
        ('def f(why):\n    match why:\n        case "the step was lost": pass', "matches"),
        ("class Line:\n    why: str = ''", "stores"),
        ("class Line:\n    assumed: tuple[str, ...]", "stores"),
        ("class Line:\n    why: Finding | None\n    name: str", ""),
        ('LOST, KEPT = "the step was lost", "it"\ndef f(why): return why == LOST', "compares"),
        ('WORDS = ("ok", "it was never seen")\ndef f(why): return why in WORDS', "compares"),
        ('A = "the step was lost"\nB, C = A, 1\ndef f(why): return why == B', "compares"),
        ('class W:\n    OF = "the step was lost"\ndef f(why): return why == W.OF', "compares"),
        ("import lost\nfrom lost import Says\ndef f(why): return why == Says.NO", "compares"),
        ('class W(StrEnum):\n    OF = "the step was lost"\ndef f(why): return why is W.OF', ""),
        (TRYING + "return 'Forbidden' in str(error)", "error"),
        (TRYING + "return str(error).startswith('Forbidden')", "error"),
        (TRYING + "told = f'{error}'.lower()\n        return any(x in told for x in ALL)", "error"),
        (TRYING + "return re.search('no (x)', str(error))", "error"),
        ("def f(error: OSError): return OWN.search(str(error))", "error"),
        ("def f(error: OSError): return 'x' in str(error.__cause__)", "error"),
        (FOREIGN + TRYING + "return str(error).startswith(GONE)", ""),
        (FOREIGN + TRYING + "return GONE.search(str(error))", ""),
        (TRYING + "return ' '.join(str(error).split())[:300]", ""),
        (TRYING + "return error.errno == 28 or 'x' in error.codes", ""),
        ('def f(how): return how == "exact" or how in ("a", "b c")', ""),
        ('def f(path): return path.startswith("/sys/bus of the kernel")', ""),
    ],
)
def test_a_sentence_that_logic_reads_is_found(
    checker: ModuleType, tmp_path: Path, source: str, found: str
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "lost.py").write_text(
        'WHY = "it was never seen"\nclass Says:\n    NO = "it was never seen"\n'
    )
    (package / "one.py").write_text(source.replace("from lost", "from package.lost"))
    told = [line for line in checker.check(package) if "/one.py" in line]
    assert (len(told), found in "".join(told)) == (bool(found), True)
