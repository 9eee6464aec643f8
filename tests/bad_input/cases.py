"""Requests with one header field, or the body, that is not what it should be; and one way of sending them to a node."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.fuzz.requests import GROUP, REQUESTS, TOPIC, Field, Request
from tests.java_store.wire import Answer, Wire
from tests.limits import WAIT_S

_WRONG_NUMBERS = {
    "i": {"text": "x", "beyond": "2147483648", "negative": "-1"},
    "l": {"text": "x", "beyond": "9223372036854775808", "negative": "-1"},
}
_WRONG_BODIES = {"none": b"", "broken": b"{", "list": b"[]", "number": b"7", "bytes": b"\xff\xfe\xfd"}
_TAKE_ANY_BODY = (10, 310, 324, 325)
"""Bodies that are messages: every byte string is one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request; `fault` is a kind of fault, `place` the field that has it, or `body`."""

    request: Request
    place: str
    fault: str
    fields: Mapping[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return f"{self.request.server} {self.request.code} {self.place} {self.fault}"


def cases() -> Iterator[Case]:
    """Every request with each of its fields wrong in each way, one at a time."""
    for request in REQUESTS:
        for field in request.fields:
            for fault, value in _wrong(field):
                fields = {**request.good, field.name: value}
                if value is None:
                    del fields[field.name]
                yield Case(request, field.name, fault, {k: v for k, v in fields.items() if v is not None}, request.body)
        if request.body and request.code not in _TAKE_ANY_BODY:
            for fault, body in _WRONG_BODIES.items():
                yield Case(request, "body", fault, request.good, body)


def _wrong(field: Field) -> Iterator[tuple[str, str | None]]:
    if field.required:
        yield "missing", None
        if field.type != "b":
            yield "empty", ""
    yield from _WRONG_NUMBERS.get(field.type, {}).items()


class Nodes:
    """A broker and a nameserver, one connection each; a connection that they close is made anew."""

    def __init__(self, broker_port: int, nameserver_port: int) -> None:
        self._ports = {"B": broker_port, "N": nameserver_port}
        self._wires: dict[str, Wire] = {}

    def ask(self, server: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Answer | None:
        """The answer, or None when there is none in time or the connection is closed instead."""
        try:
            wire = self._wires.get(server) or Wire(self._ports[server], WAIT_S)
            self._wires[server] = wire
            return wire.ask(code, fields, body)
        except OSError:
            self.close()
            return None

    def prepare(self) -> None:
        """The topic and the group that well-formed requests name."""
        fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        assert self.ask("B", 17, {**fields, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
        assert self.ask("B", 200, {}, b'{"groupName":"%s"}' % GROUP.encode())

    def close(self) -> None:
        for wire in self._wires.values():
            with contextlib.suppress(OSError):
                wire.__exit__()
        self._wires.clear()
