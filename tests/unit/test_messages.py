"""The messages are a closed set: what was encoded comes back, anything else is refused."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck import messages
from flowcheck.errors import MessageError
from flowcheck.findings.catalog.chain_processes import NO_LINK_YET, STARTED_BY
from flowcheck.findings.catalog.lost_steps import COPIES_DIFFER, STEP_LOST
from flowcheck.findings.catalog.refused_commands import NOT_A_MESSAGE
from flowcheck.messages import Message, decode, encode

KINDS = sorted(Message.__subclasses__(), key=lambda kind: kind.__name__)

EXAMPLES: list[Message] = [
    messages.Hello(stage="parse-0", pid=4711, layout_version=1),
    messages.FramesReady(ring=0, head=2**63),
    messages.SpanReady(ring=1, parsed=5),
    messages.SourceEnded(ring=0, frames=1417),
    messages.JobLearned(path="/run/x/job.json"),
    messages.ShardReady(iteration=3, generation=1),
    messages.StepArrived(step=3, time_ns=1_700_000_000_000_000_000),
    messages.StepApplied(step=3, seconds=0.25, digest="ab"),
    messages.StepLost(step=4, missing=((0, 8), (64, 128)), why=COPIES_DIFFER(8)),
    messages.StepShort(step=4, missing_bytes=72, why=STEP_LOST(step=4, reason=COPIES_DIFFER(8))),
    messages.StepDoubtful(step=3, conflict_bytes=8),
    messages.CopiesDiffer(step=3, conflict_bytes=8, path="differing-3.json", why=COPIES_DIFFER(8)),
    messages.StepSaved(step=3, name="step-3", bytes=9, seconds=0.5, time_ns=7),
    messages.SaveFailed(step=None, why=NO_LINK_YET("a"), attempts=2),
    messages.Drained(stage="extract", steps=20),
    messages.Fault(stage="capture-0", finding=NO_LINK_YET("capture-0").until_audited()),
    messages.Note(stage="capture-0", finding=NO_LINK_YET("b\udc80")),
    messages.Unwritten(stage="update", file="/run/steps.jsonl", lines=3, full=NO_LINK_YET("c")),
    messages.Stop(reason=STARTED_BY(15), drain=True),
]


def test_the_examples_cover_every_kind_of_message() -> None:
    assert sorted(type(e).__name__ for e in EXAMPLES) == [kind.__name__ for kind in KINDS]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_logged_message_is_readable_json_that_names_its_kind(message: Message) -> None:
    assert json.loads(encode(message))["type"] == type(message).__name__


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_field_too_many_or_too_few_is_refused(message: Message) -> None:
    fields = msgspec.to_builtins(message)
    with pytest.raises(MessageError):
        decode(json.dumps(fields | {"surplus": 1}).encode())
    required = [f.name for f in msgspec.structs.fields(message) if f.required]
    for name in required:
        with pytest.raises(MessageError):
            decode(json.dumps({k: v for k, v in fields.items() if k != name}).encode())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{}",
        b"null",
        b'{"type":"Nonsense"}',
        b'{"type":"Hello","stage":1,"pid":1,"layout_version":1}',
        b"\x80\x04\x95pickle",
        b'{"type":"Hello"',
    ],
)
def test_anything_else_is_refused_with_what_it_was(frame: bytes) -> None:
    with refused_as(NOT_A_MESSAGE, kind=MessageError):
        decode(frame)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_message_error(frame: bytes) -> None:
    try:
        decoded = decode(frame)
    except MessageError:
        return
    assert isinstance(decoded, Message)
