"""Every argument of every public call: what its annotation does not allow is refused by name, before anything is sent.

The signatures are walked, so that a new argument is tried as soon as it is there.
"""

import asyncio
import collections.abc
import dataclasses
import inspect
import math
import signal
import ssl
import types
import typing
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

import pytest

from ledgermq.client import (
    Admin,
    Consumer,
    FaultStrategy,
    GroupConfig,
    Message,
    MessageQueue,
    Policy,
    PoppedMessage,
    Producer,
    Retry,
    SimpleConsumer,
)
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.message.hosts import Host
from ledgermq.message.pop_handle import PopHandle
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import Record
from tests.client.fake import FakeCluster

LIMIT_S = 2.0
SECONDS_MAX = 1e9
NOW = datetime.now().astimezone()
NAMESRV = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "b", 0)
RECORD = Record("T", 0, 0, 0, 0, 0, 1, Host("127.0.0.1", 1), 2, Host("127.0.0.1", 1), 0, 0, b"x", b"", 0, 100)
POPPED = PoppedMessage(RECORD, QUEUE, PopHandle(0, 1, 2, 0, "0", "b", 0, 0), None)
NAIVE = datetime(2026, 1, 1)  # wrong on purpose
WRONG_QUEUE = MessageQueue(5, 5, "x")  # type: ignore[arg-type]  # on purpose
ASKED = encode_properties({"CLUSTER": "C", "REPLY_TO_CLIENT": "c", "CORRELATION_ID": "1"})
REQUEST = Message(dataclasses.replace(RECORD, properties=ASKED), QUEUE)


async def handle(message: Message) -> None: ...


RIGHT: dict[str, Any] = {
    "namesrv": NAMESRV, "group": "g", "topics": "T", "topic": "T", "body": b"x", "value": "v", "messages": [b"x"],
    "request": REQUEST, "message": POPPED, "handle": "no handle", "handler": handle, "queue": QUEUE, "offset": 0,
    "when": NOW, "invisible_s": 1.0, "broker": "b", "settings": {"a": "b"}, "letter": POPPED,
    "config": GroupConfig("g"), "client_id": "c", "offset_message_id": "7F00000100002A9F0000000000000000",
    "count_max": 1, "key": "k", "message_id": "m", "begin": NOW, "end": NOW,
    "timestamp_ms": 0, "to": "first", "source": "g", "target": "h", "namespace": "n", "name": "n", "password": "p",
    "subject": "User:n", "policies": [Policy("Topic:*", ("Pub",))],
}  # fmt: skip
"""A right value for each argument that must be given."""

JUNK: tuple[Any, ...] = (
    None, "x", b"x", 5, -1, 1.5, True, math.nan, math.inf, -math.inf, 1e300, 1 << 80, object(), [5], {5: 5}, len, NAIVE,
    WRONG_QUEUE, MessageQueue("T", "b", -1), ("x", 5), {"x": None},
)  # fmt: skip

SPOKEN_OF = {"namesrv": "nameserver address", "topics": "topic", "properties": "property"}
"""Where a part of an argument is what is wrong."""


class Argument(NamedTuple):
    name: str
    annotation: Any
    is_star: bool
    is_required: bool


def arguments(function: Callable[..., Any]) -> Iterator[Argument]:
    """All that can be given to it, those of `**options` one by one."""
    hints = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = typing.get_args(hints[name])
            for key, annotation in typing.get_type_hints(options).items():
                yield Argument(key, annotation, False, False)
        else:
            is_star = parameter.kind is parameter.VAR_POSITIONAL
            yield Argument(name, hints[name], is_star, parameter.default is parameter.empty and not is_star)


def fits(value: object, annotation: Any) -> bool:
    """Whether an annotation allows a value; numbers are sane ones, and times have a zone."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Mapping:
        return isinstance(value, dict) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin in (collections.abc.Iterable, collections.abc.Sequence):
        return isinstance(value, collections.abc.Iterable) and all(fits(one, inner[0]) for one in value)
    if annotation in (float, int):
        kinds = (int,) if annotation is int else (int, float)
        most = (1 << 63) - 1 if annotation is int else SECONDS_MAX
        return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= most
    if annotation is signal.Signals:
        return not isinstance(value, bool) and isinstance(value, int) and value in set(signal.Signals)
    if annotation is datetime:
        return isinstance(value, datetime) and value.tzinfo is not None
    if annotation is MessageQueue:
        return isinstance(value, MessageQueue) and fits(tuple.__getitem__(value, 0), str) and value.queue_id == 0
    return isinstance(value, annotation)


def calls(kind: type) -> list[tuple[str, Callable[..., Any]]]:
    """The public calls of a class that take something."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return [(name, call) for name, call in found if not name.startswith("_") and list(arguments(call))]


def made_by(kind: type) -> Callable[..., Any]:
    """What makes one."""
    made: Callable[..., Any] = vars(kind).get("__init__") or made_by(kind.__mro__[1])
    return made


def wrong_ways(call: Callable[..., Any]) -> Iterator[tuple[Argument, object, list[Any], dict[str, Any]]]:
    """All calls with one wrong argument, and right ones else."""
    given = list(arguments(call))
    for argument in given:
        for value in JUNK:
            if fits(value, argument.annotation):
                continue
            rest = {one.name: RIGHT[one.name] for one in given if one.is_required and one is not argument}
            yield (
                argument,
                value,
                [value] if argument.is_star else [],
                rest | ({} if argument.is_star else {argument.name: value}),
            )


async def outcome(call: Callable[..., Any], args: list[Any], options: dict[str, Any]) -> object:
    """What it raised, or returned."""
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = call(*args, **options)
            if inspect.isasyncgen(answer):
                return await anext(answer)
            if hasattr(answer, "__aenter__"):
                async with answer:
                    return answer
            return await answer if isinstance(answer, Awaitable) else answer
    except Exception as error:
        return error


def complaint(name: str, argument: Argument, value: object, answer: object) -> str | None:
    """What is not as it should be."""
    what = f"{name}({argument.name}={value!r}): {answer!r}"
    if not isinstance(answer, InvalidArgumentError):
        return what
    text = str(answer)
    names_it = argument.name in text or SPOKEN_OF.get(argument.name, argument.name) in text
    shown = (repr(value), str(value), type(value).__name__, *map(repr, _parts(value)))
    shows_it = any(one in text for one in shown)
    return None if names_it and shows_it else f"says too little: {what}"


def _parts(value: object) -> tuple[object, ...]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return tuple(value) if isinstance(value, list | tuple) else ()


@pytest.mark.parametrize("kind", [Producer, Consumer, SimpleConsumer, Admin, FaultStrategy, Retry])
async def test_whatever_is_made_refuses_wrong_settings(kind: type) -> None:
    complaints = [
        complaint(kind.__name__, argument, value, await outcome(lambda **o: kind(**o) and None, args, options))
        for argument, value, args, options in wrong_ways(made_by(kind))
    ]
    wrong = [one for one in complaints if one]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", [Producer, Consumer, SimpleConsumer, Admin])
async def test_every_call_refuses_wrong_arguments(cluster: FakeCluster, kind: type) -> None:
    await cluster.add(topics={"T": 1})
    required = {one.name: RIGHT[one.name] for one in arguments(made_by(kind)) if one.is_required}
    complaints = []
    async with kind(**required | {"namesrv": cluster.namesrv, "deadline_s": 0.3}) as client:
        for name, call in calls(kind):
            for argument, value, args, options in wrong_ways(call):
                answer = await outcome(getattr(client, name), args, options)
                complaints.append(complaint(name, argument, value, answer))
    assert len(complaints) > 50
    wrong = [one for one in complaints if one]
    assert not wrong, "\n".join(wrong)


def test_a_right_value_is_known_for_each_argument_that_must_be_given() -> None:
    for kind in (Producer, Consumer, SimpleConsumer, Admin):
        for name, call in [("__init__", made_by(kind)), *calls(kind)]:
            unknown = [one.name for one in arguments(call) if one.is_required and one.name not in RIGHT]
            assert not unknown, f"{kind.__name__}.{name}"


def test_the_annotations_are_understood() -> None:
    assert fits(None, str | None)
    assert fits(1, float)
    assert not fits(True, float)
    assert not fits(math.nan, float | None)
    assert not fits(NAIVE, datetime)
    assert fits(Path(), Path | str | None)
    assert not fits("yes", bool | ssl.SSLContext)
