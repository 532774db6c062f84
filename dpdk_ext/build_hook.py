"""Hatchling hook: compile the cffi modules and put them into the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CffiBuildHook(BuildHookInterface):
    """Builds `_core` and, where libdpdk is found, `_dpdk` beside the package's Python files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # scripts/lib/setup.sh compiles while pip downloads; twice would be for nothing.
        if version == "editable" and os.environ.get("FLOWCHECK_COMPILED_APART"):
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "dpdk_ext"))
        import build_ffi

        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in build_ffi.build_all(root / "flowcheck"):
            build_data["force_include"][str(path)] = f"flowcheck/{path.name}"
