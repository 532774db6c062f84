"""The page for people."""

from __future__ import annotations

KIND = "text/html; charset=utf-8"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
PAGE = (
    b"<!doctype html><html lang=en><meta charset=utf-8><title>FlowCheck</title>"
    b"<p><a href=/state.json>state</a> <a href=/healthz>health</a> <a href=/metrics>metrics</a>"
)


def page() -> bytes:
    """The whole page; nothing else is asked for but /state.json."""
    return PAGE
