"""Why `flowcheck watch` refuses a request."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

TOKEN_NEEDED = Entry("watch.token_needed", "send this server's token")
LOCAL_ONLY = Entry(
    "watch.local_only",
    "this server is for its own machine: ask for it as 127.0.0.1 or localhost",
)
PATH_UNREADABLE = Entry("watch.path_unreadable", "the request's path cannot be parsed as a URL")
PATH_UNKNOWN = Entry(
    "watch.path_unknown", "unknown path: there are /, /metrics, /healthz and /state.json"
)
INVALID_REQUEST = Entry("watch.invalid_request", "{error}")
"""error: of Python's HTTP server, of what is no request."""
