"""Compile the cffi modules: `flowcheck._core` always, `flowcheck._dpdk` with libdpdk,
`flowcheck._lab`, the emulated RoCE ports of the lab, with zlib, and `flowcheck._isal` with libisal.

The C headers are the declarations: cffi reads the files the compiler reads, less their
preprocessor lines, so no struct and no prototype is written twice.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
CORE = HERE / "core"
STEP = HERE / "step"
DPDK = HERE / "dpdk"
LAB = HERE / "lab"

CORE_HEADERS = (
    "fc_error_api.h",
    "fc_counters.h",
    "fc_ring.h",
    "fc_flow.h",
    "fc_shm.h",
    "fc_ring_api.h",
    "fc_copy.h",
    "fc_pcap.h",
    "fc_icrc.h",
    "fc_sha256.h",
    "fc_flush.h",
    "fc_populate.h",
    "fc_parse.h",
    "fc_flow_api.h",
    "fc_plan.h",
    "fc_ll.h",
    "fc_shard.h",
    "fc_staging.h",
    "fc_extract.h",
)
"""Headers cffi may read: declarations only, no inline functions, no macros that matter."""

STEP_HEADERS = ("fc_step.h", "fc_commit.h", "fc_norm.h")
"""Of the optimizer's step, for cffi; the others in that folder hold inlines and vectors."""

DPDK_HEADERS = ("fc_eal.h", "fc_port.h", "fc_timestamps.h", "fc_dma.h", "fc_capture.h")
"""The capture's headers for cffi; the others in that folder hold inlines and DPDK's types."""

LAB_HEADERS = ("fcl_net.h", "fcl_comm.h")
"""What Python calls of the lab; the wire structs are the only thing it shares with the rest."""

DPDK_CORE_SOURCES = (
    "fc_error.c",
    "fc_shm.c",
    "fc_ring.c",
    "fc_copy.c",
    "fc_frame_copy.c",
    "fc_icrc.c",
    "fc_pcap.c",
    "fc_pcapng.c",
)
"""What the capture shares with the plain module; the two are loaded independently."""

DPDK_VERSIONS = ((22, 11), (25, 0))
"""libdpdk releases the extension is written for: from, below."""

COMMON_FLAGS = ("-std=gnu11", "-O3", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter")


def declarations(folder: Path, names: tuple[str, ...]) -> str:
    """The text cffi parses: the headers without preprocessor lines and attributes."""
    text = "\n".join((folder / name).read_text() for name in names)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*?(?<!\\)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*(?=;)", "", text)
    return re.sub(r"_Static_assert\s*\(.*?\);", "", text, flags=re.DOTALL)


def core_builder(extra_flags: tuple[str, ...] = ()) -> FFI:
    """The plain C11 module: rings, parsing, placing, and the optimizer's step, whose roundings are
    torch's: nothing may be fused or reordered. Builds anywhere gcc or clang does."""
    ffi = FFI()
    headers = tuple(name for name in CORE_HEADERS if (CORE / name).exists())
    ffi.cdef(declarations(CORE, headers))
    ffi.cdef(declarations(STEP, STEP_HEADERS))
    ffi.set_source(
        "flowcheck._core",
        "".join(f'#include "{name}"\n' for name in (*headers, *STEP_HEADERS)),
        sources=[str(path) for folder in (CORE, STEP) for path in sorted(folder.glob("*.c"))],
        include_dirs=[str(CORE), str(STEP)],
        extra_compile_args=[*COMMON_FLAGS, "-ffp-contract=off", "-fno-math-errno", *extra_flags],
        libraries=["m", "pthread"],
    )
    return ffi


def pkg_config(*arguments: str) -> list[str]:
    """What `pkg-config ARGUMENTS` prints, as words. Raises CalledProcessError or OSError."""
    done = subprocess.run(
        ["pkg-config", *arguments], check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.split()


def dpdk_missing() -> str | None:
    """Why `_dpdk` cannot be built here, as one sentence, or None."""
    try:
        version = pkg_config("--modversion", "libdpdk")[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return (
            "libdpdk was not found by pkg-config, so captures from a NIC are left out; "
            "install libdpdk-dev, or point PKG_CONFIG_PATH at a DPDK build, and build again"
        )
    major_minor = tuple(int(part) for part in version.split(".")[:2])
    low, high = DPDK_VERSIONS
    if not low <= major_minor < high:
        return f"libdpdk {version} was found, but the capture is written for 22.11 to 24.11"
    return None


def dpdk_builder(extra_flags: tuple[str, ...] = ()) -> FFI:
    """The capture module: EAL, ports, copy engines."""
    ffi = FFI()
    shared = declarations(CORE, ("fc_error_api.h",)) + "\nint fc_map_trust(uint32_t uid);\n"
    ffi.cdef(shared + declarations(DPDK, DPDK_HEADERS))
    ffi.set_source(
        "flowcheck._dpdk",
        "".join(f'#include "{name}"\n' for name in (*DPDK_HEADERS, "fc_error_api.h", "fc_shm.h")),
        sources=[
            *(str(path) for path in sorted(DPDK.glob("*.c"))),
            *(str(CORE / name) for name in DPDK_CORE_SOURCES),
        ],
        include_dirs=[str(DPDK), str(CORE)],
        extra_compile_args=[*COMMON_FLAGS, *extra_flags, *pkg_config("--cflags", "libdpdk")],
        extra_link_args=pkg_config("--libs", "libdpdk"),
    )
    return ffi


def lab_missing(extra_flags: tuple[str, ...] = ()) -> str | None:
    """Why `_lab` cannot be built here, as one sentence, or None."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = shlex.split(os.environ.get("CFLAGS", "") + " " + os.environ.get("CPPFLAGS", ""))
    try:
        subprocess.run(
            [*compiler, *flags, *extra_flags, "-E", "-x", "c", "-"],
            input=b"#include <zlib.h>\n",
            check=True,
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "zlib.h was not found, so the lab's RoCE ports are left out; install zlib1g-dev"
    return None


def lab_builder(extra_flags: tuple[str, ...] = ()) -> FFI:
    """The lab's module. Sums are rounded at every hop, so nothing may be fused or reordered."""
    ffi = FFI()
    ffi.cdef(declarations(LAB, LAB_HEADERS))
    ffi.set_source(
        "flowcheck._lab",
        "".join(f'#include "{name}"\n' for name in LAB_HEADERS),
        sources=[str(path) for path in sorted(LAB.glob("*.c"))],
        include_dirs=[str(LAB), str(CORE)],
        extra_compile_args=[*COMMON_FLAGS, "-ffp-contract=off", *extra_flags],
        libraries=["z", "m", "pthread"],
    )
    return ffi


ISAL_CALLS = """
void gf_gen_cauchy1_matrix(unsigned char *a, int m, int k);
int gf_invert_matrix(unsigned char *in, unsigned char *out, const int n);
unsigned char gf_mul(unsigned char a, unsigned char b);
void ec_init_tables(int k, int rows, unsigned char *a, unsigned char *gftbls);
void ec_encode_data(int len, int k, int rows, unsigned char *gftbls, unsigned char **data,
                    unsigned char **coding);
int xor_gen(int vects, int len, void **array);
"""
"""ISA-L 2.30's erasure_code.h and raid.h, as far as saves on several stores call them."""


def isal_missing() -> str | None:
    """Why `_isal` cannot be built here, as one sentence, or None."""
    try:
        pkg_config("--modversion", "libisal")
    except (OSError, subprocess.SubprocessError):
        return (
            "libisal was not found by pkg-config, so saves on several stores are left out; "
            "install libisal-dev and build again"
        )
    return None


def isal_builder(extra_flags: tuple[str, ...] = ()) -> FFI:
    """The erasure code's module: ISA-L's own calls and no code of ours."""
    ffi = FFI()
    ffi.cdef(ISAL_CALLS)
    ffi.set_source(
        "flowcheck._isal",
        "#include <isa-l/erasure_code.h>\n#include <isa-l/raid.h>\n",
        extra_compile_args=[*COMMON_FLAGS, *extra_flags, *pkg_config("--cflags", "libisal")],
        extra_link_args=pkg_config("--libs", "libisal"),
    )
    return ffi


def compile_into(ffi: FFI, package: Path) -> Path:
    """Build `ffi` and put the finished shared object into `package`, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="flowcheck-build-") as scratch:
        built = Path(ffi.compile(tmpdir=scratch, verbose=bool(os.environ.get("FLOWCHECK_VERBOSE"))))
        target = package / f"{built.name.split('.')[0]}{sysconfig.get_config_var('EXT_SUFFIX')}"
        staging = target.with_suffix(".tmp")
        staging.write_bytes(built.read_bytes())
        staging.chmod(0o755)
        staging.replace(target)
    return target


def _build(builder: Callable[[tuple[str, ...]], FFI], package: Path) -> Path:
    return compile_into(builder(tuple(os.environ.get("FLOWCHECK_CFLAGS", "").split())), package)


def build_all(package: Path) -> list[Path]:
    """Build what can be built here into `package`, side by side; say what was left out and why."""
    builders = [core_builder]
    missing = {
        dpdk_builder: dpdk_missing() if any(DPDK.glob("*.c")) else "no capture sources",
        lab_builder: lab_missing(tuple(os.environ.get("FLOWCHECK_CFLAGS", "").split())),
        isal_builder: isal_missing(),
    }
    for builder, reason in missing.items():
        if reason is None:
            builders.append(builder)
        else:
            print(f"flowcheck: {reason}", file=sys.stderr)
    # Processes: cffi changes the current folder while it compiles.
    with multiprocessing.get_context("fork").Pool(len(builders)) as pool:
        return pool.starmap(_build, [(builder, package) for builder in builders])


if __name__ == "__main__":
    for path in build_all(HERE.parent / "flowcheck"):
        print(path)
