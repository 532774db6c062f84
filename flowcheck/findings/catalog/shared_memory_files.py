"""Where shared memory lies and whether 2 MiB pages back it; why a file of it (ring, flow table,
staging, shard) is not made or not opened."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_MEMORY_LEFT = Entry(
    "shared_file.no_memory_left",
    "{what}: {error}; {folder} has {free_mib} MiB free",
    section="processes",
    cause="Rings, flow tables and staging are reserved in full before a chain starts.",
    remedy="Free memory there (`flowcheck status --leftovers` lists what killed chains hold), "
    "or lower `slots` of `[ring]` or `size_bytes` of `[staging]`; `flowcheck plan "
    "JOB.toml` shows the sum line by line.",
)
NO_HUGE_PAGES_LEFT = Entry(
    "shared_file.no_huge_pages_left",
    "{what}: {error}; 2 MiB pages of {free_mib} MiB are free",
    section="processes",
    cause="Another process took the pages, or fewer are reserved than the chain needs.",
    remedy="Reserve more (`scripts/hugepages reserve N`), or lower `slots` of `[ring]` or "
    "`size_bytes` of `[staging]`; `flowcheck plan JOB.toml` shows the sum line by line.",
)
NOT_THERE = Entry(
    "shared_file.not_there",
    "{what}: {error}: the chain that makes it has ended, or was not started yet",
    remedy="`flowcheck status{this_run!o}` says which; start the chain with `flowcheck up "
    "JOB.toml{this_run!o}`.",
)
THERE_ALREADY = Entry(
    "shared_file.there_already",
    "{what}: {error}: a chain runs there or was killed there",
    remedy="`flowcheck down{this_run!o}` ends it and removes its memory.",
)
NOT_PERMITTED = Entry(
    "shared_file.not_permitted",
    "{what}: {error}: it belongs to the chain of {owner}, and this command runs as {user}",
    remedy="Run it as that user or as root.",
)
OTHER_LAYOUT = Entry(
    "shared_file.other_layout",
    "{what}: {error}: another release of FlowCheck made it",
    remedy="End that chain with its own release (`flowcheck down{this_run!o}`), then start it "
    "with this one.",
)
DAMAGED = Entry(
    "shared_file.damaged",
    "{what}: {error}: it was cut off or never finished",
    remedy="Remove it with `flowcheck down{this_run!o}`, then start the chain again.",
)
SIZES_REFUSED = Entry(
    "shared_file.sizes_refused",
    "{what}: {error}",
    remedy="Correct `[ring]` or `[staging]` in the job file.",
)

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
    "memory.pages_small",
    "correct but slower; `{command}` lets it use 2 MiB pages",
)
DPDK_WITHOUT_HUGE_PAGES = Entry(
    "memory.dpdk_without_huge_pages",
    "DPDK runs without huge pages ({need_mib} MiB of them are needed, {free_mib} MiB are free): "
    "correct but slower",
    cause="DPDK takes its memory from ordinary pages.",
    remedy="Reserve huge pages right after boot, while memory is not fragmented: "
    "`scripts/hugepages reserve N`.",
    section="processes",
)
