"""Texts of other libraries that FlowCheck reads because they give no code, type or field in their
place. Each has the version and the file that it was read from; what another release says instead is
shown as it is, and only less well explained. tests/unit/test_foreign_messages.py lets the installed
libraries say them."""

from __future__ import annotations

import re

TORCH_NOT_ALLOWED = re.compile(r"[Uu]nsupported (?:global: GLOBAL|global:|class:|GLOBAL) ([\w.]+)")
"""torch 2.13, torch/_weights_only_unpickler.py: names what a file would have called. Of what is not
allowed, and of modules that never are."""
TORCH_SCHEDULE_ENDED = "Tried to step"
"""torch 2.13, torch/optim/lr_scheduler.py, OneCycleLR.get_lr: begins the ValueError of a
schedule that has no more steps."""
MSGSPEC_PLACE = re.compile(r" - at `\$\.?(.*)`")
"""msgspec 0.22, of a ValidationError: where in the document. Behind what is wrong."""
MSGSPEC_MISSING = re.compile(r"Object missing required field `(\w+)`")
MSGSPEC_LENGTH = re.compile(r"Expected `array` of length (\d+), got (\d+)")
MSGSPEC_TYPE = re.compile(r"Expected `(.+)`, got `(\w+)`")
"""msgspec 0.22, src/msgspec/_core.c: it has one class of error for all of these."""
SAFETENSORS_ERRNO = re.compile(r"os error (\d+)")
"""safetensors 0.8: SafetensorError ends with the text of Rust's std::io::Error, in which the number
of the system's error is."""
GCSFS_FORBIDDEN = "Forbidden: "
"""gcsfs (gcsfs/retry.py, validate_response, at 02bfe43): begins the plain OSError of HTTP 403."""
