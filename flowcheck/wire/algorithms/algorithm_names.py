"""Names of NCCL's algorithms, as NCCL_ALGO has them in lower case.

They stand in job.json, in layout files and in `--json`: a name once given stays.
"""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    RING = "ring"
    TREE = "tree"
    NVLS_TREE = "nvlstree"
    NVLS = "nvls"
    COLLNET = "collnet"
    PAT = "pat"
