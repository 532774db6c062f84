"""Files and names that a README.md speaks of exist: a rename renames them there, too."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("flowcheck", "dpdk_ext", "scripts", "switch_configs", "tests")
PAGES = sorted(
    page for top in FOLDERS for page in (ROOT / top).rglob("README.md") if page.is_file()
) + [ROOT / name for name in ("README.md", "SECURITY.md")]
SOURCES = {".py", ".c", ".h", ".j2", ".toml", ".json", ".yml", ".service", ".conf", ".sh", ""}
FOREIGN = {
    "clzero",
    "ib_write_bw",
    "set_gradient_divide_factor",
    "set_requires_all_reduce",
    "set_symm_mem_for_comm",
}
"""Of the CPU, of the perftest package, of torch's FSDP2: names that no file of ours has."""
A_FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w./-]+\.(?:py|c|h|j2|md)", re.ASCII)
A_NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?", re.ASCII)


def our_files() -> list[Path]:
    found = [path for top in FOLDERS for path in (ROOT / top).rglob("*") if path.is_file()]
    own = [path for path in found if "__pycache__" not in path.parts and ".so" not in path.suffixes]
    return [*own, ROOT / "pyproject.toml"]


def spoken_of(text: str) -> list[str]:
    """What stands between backticks in the prose of a page."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.fixture(scope="module")
def places() -> set[str]:
    """Every file and folder, by each end of its path: `state/x.py` of `ops/state/x.py`."""
    whole = {path.relative_to(ROOT) for path in our_files()}
    whole |= {above for path in whole for above in path.parents}
    return {"/".join(path.parts[at:]) for path in whole for at in range(len(path.parts))}


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Every word of the sources and of the tests' own helpers."""
    texts = (p.read_text(errors="replace") for p in our_files() if p.suffix in SOURCES)
    return {word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text, re.ASCII)}


def missing(text: str, places: set[str], words: set[str]) -> list[str]:
    found = []
    for one in spoken_of(text):
        if A_FILE.fullmatch(one):
            if one.rstrip("/") not in places:
                found.append(one)
        elif A_NAME.fullmatch(one) and one.removesuffix("()").split(".")[-1] not in words | FOREIGN:
            found.append(one)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_what_exists(page: Path, places: set[str], words: set[str]) -> None:
    assert missing(page.read_text(), places, words) == []


def test_a_file_and_a_name_that_are_gone_are_found(places: set[str], words: set[str]) -> None:
    gone = "as_it_" + "was_called"  # in two parts: this file is one of the sources
    text = f"`flowcheck/ops/{gone}.py`, `config/{gone}.c`, `{gone}()`, `errors.py`, `ConfigError`"
    assert missing(text, places, words) == [
        f"flowcheck/ops/{gone}.py",
        f"config/{gone}.c",
        f"{gone}()",
    ]
