"""The page of `flowcheck watch`: one HTML document with style and script inside. It is assembled
once from the files of this folder.

Its headers allow the browser that style and script (by digest) and /state.json of the same server,
nothing else. No text of a state is parsed as HTML (tree.js), and browsers with Trusted Types
enforce it.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

SCRIPTS = (
    "tree.js",
    "words.js",
    "shapes.js",
    "marks.js",
    "sparks.js",
    "health.js",
    "timeline.js",
    "details.js",
    "diagram.js",
    "chunks.js",
    "chain.js",
    "job.js",
    "models.js",
    "events.js",
    "choice.js",
    "drawing.js",
    "poll.js",
)
"""Script files in the order in which they are joined; poll.js starts the page."""
STYLES = ("page.css", "health.css", "steps.css", "chain.css", "media.css")
"""Style files in the order in which they are joined; later rules override earlier ones."""
KIND = "text/html; charset=utf-8"


def _together() -> tuple[str, str, str]:
    """(skeleton, style, script)."""
    folder = Path(__file__).parent
    script, style = (
        "".join((folder / name).read_text("utf-8") for name in names) for names in (SCRIPTS, STYLES)
    )
    return (
        (folder / "page.html").read_text("utf-8"),
        style,
        f'"use strict";\n(() => {{\n{script}}})();\n',
    )


def _digest(text: str) -> str:
    """As a Content-Security-Policy names it (W3C CSP Level 3, 2.3.1 hash-source)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SKELETON, _STYLE, _SCRIPT = _together()
_PAGE = _SKELETON.replace("@STYLE@", _STYLE).replace("@SCRIPT@", _SCRIPT).encode()
POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_digest(_SCRIPT)}",
        f"style-src {_digest(_STYLE)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""HTTP headers of the page."""


def page() -> bytes:
    """The whole page as UTF-8 bytes. It requests only state.json from the same server."""
    return _PAGE
