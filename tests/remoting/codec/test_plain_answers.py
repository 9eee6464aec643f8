"""Answers that are kept as they came are what JSON says, with another number."""

import pytest

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode_response_head, frame_of
from ledgermq.remoting.codec.plain_answers import PlainAnswer

FIELDS = {"msgId": "7F", "queueOffset": "12", "text": 'a"\u00e9'}


def kept(frame: bytes) -> Command:
    parser = FrameParser()
    parser.keeps_answers = True
    (command,) = parser.feed(frame)
    return command


@pytest.mark.parametrize("body", [b"", b"body"])
def test_an_answer_goes_on_with_another_number(body: bytes) -> None:
    answer = kept(encode_response_head(7, 0, FIELDS, None, len(body)) + body)
    assert isinstance(answer, PlainAnswer)
    assert (answer.code, answer.opaque, answer.is_response, bytes(answer.body)) == (0, 7, True, body)
    assert (answer.ext, answer.remark) == (FIELDS, None)
    passed = b"".join(frame_of(answer.header(1_000_000), answer.body))
    assert passed == encode_response_head(1_000_000, 0, FIELDS, None, len(body)) + body


@pytest.mark.parametrize(
    ("code", "fields", "remark"),
    [(14, FIELDS, None), (0, FIELDS, "text"), (0, None, None), (0, FIELDS | {"text": "{}"}, None)],
)
def test_other_answers_are_read(code: int, fields: dict[str, str] | None, remark: str | None) -> None:
    answer = kept(encode_response_head(7, code, fields, remark, 0))
    assert type(answer) is Command
    assert (answer.code, answer.opaque, answer.ext, answer.remark) == (code, 7, fields or {}, remark)
