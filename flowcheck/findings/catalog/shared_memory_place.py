"""Where shared memory lies, and whether 2 MiB pages back it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

ON_HUGE_PAGES = Entry("memory.on_huge_pages", "2 MiB pages on {folder}")
TOO_FEW_HUGE_PAGES = Entry(
    "memory.too_few_huge_pages",
    "{mount} has {free_mib} MiB of 2 MiB pages free and {need_mib} MiB are needed: using {folder}, "
    "{pages}",
    remedy="Reserve huge pages: `scripts/hugepages reserve N`.",
)
NO_HUGETLBFS = Entry(
    "memory.no_hugetlbfs",
    "no hugetlbfs with 2 MiB pages is mounted: using {folder}, {pages}",
    remedy="Reserve huge pages: `scripts/hugepages reserve N`.",
)
NO_RINGS = Entry("memory.no_rings", "no frames are captured; the replica is in {folder}")
HUGE_PAGES_TAKEN = Entry(
    "memory.huge_pages_taken",
    "another process took the free 2 MiB pages meanwhile: using {folder}",
    remedy="Reserve more huge pages: `scripts/hugepages reserve N`.",
)
PAGES_AS_FOUND = Entry("memory.pages_as_found", "with 2 MiB pages where the kernel finds free ones")
PAGES_SMALL = Entry(
    "memory.pages_small", "correct but slower (scripts/hugepages reserve N, or {command})"
)
DPDK_WITHOUT_HUGE_PAGES = Entry(
    "memory.dpdk_without_huge_pages",
    "DPDK runs without huge pages ({need_mib} MiB of them are needed, {free_mib} MiB are free): "
    "correct but slower (scripts/hugepages reserve N)",
    cause="DPDK takes its memory from ordinary pages.",
    remedy="Reserve huge pages right after boot, while memory is not fragmented.",
    section="processes",
)
