"""Python files that a user names, with functions that FlowCheck is to call."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def file_module(path: Path) -> ModuleType:
    """The file as a module; its own imports are looked up beside it, and of the arguments of this
    program it sees none. Raises FileNotFoundError, ImportError, and whatever the file raises."""
    path = path.resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    arguments, sys.argv = sys.argv, [str(path)]  # ours are none of a training script's
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # where dataclasses look for their own module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.argv = arguments
        sys.path.remove(str(path.parent))
    return module
