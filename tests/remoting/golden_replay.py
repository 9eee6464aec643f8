"""Recorded requests of Java's clients and tools, in the order in which they were asked; what is compared of answers.

Positions, keys and handles of the recorded store are put in as they are in ours; nothing else of a request is changed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError

WIRE: Final = Path(__file__).parents[1] / "golden" / "wire" / "json"
_MAPS: Final = frozenset(
    {"offsetTable", "topicConfigTable", "table", "brokerAddrs", "brokerAddrTable", "clusterAddrTable", "data",
     "subscriptionGroupTable", "forbiddenTable", "messageRequestModeMap", "consumerTable", "attributes",
     "subscriptionTable", "delayLevel", "mqTable", "properties", "statusTable", "timingCount", "groupTopicMap"}
)  # fmt: skip
"""Members that are maps: their keys are data, their values are alike."""

_OURS: Final = frozenset({"cause", "retryAfterMs", "leaderHint", "leaderId", "routeVersion", "copies", "durableCopies",
                          "term"})  # fmt: skip
"""Fields that we add; RocketMQ's clients leave out what they do not know."""

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded question and its answer; `server` is `B` or `N`."""

    name: str
    server: str
    is_held: bool
    request: Command
    answer: Command | None


def exchanges() -> Iterator[Exchange]:
    """All that was asked of brokers and nameservers, in the order in which the recording client counted them."""
    found = []
    for path in WIRE.glob("*/*/exchange.json"):
        manifest = json.loads(path.read_text())
        if manifest["direction"] != "dialling side asks" or manifest["link"] not in ("broker", "broker-vip", "ns"):
            continue
        found.append((manifest["request"]["opaque"], str(path.parent), manifest))
    for _, folder, manifest in sorted(found, key=lambda item: item[:2]):
        answer = Path(folder, "response.bin")
        yield Exchange(
            name="/".join(Path(folder).parts[-2:]),
            server="N" if manifest["link"] == "ns" else "B",
            is_held=bool(manifest["longPoll"]),
            request=_frame(Path(folder, "request.bin")),
            answer=_frame(answer) if answer.exists() else None,
        )


def client_answer(code: int) -> Command:
    """What the recorded client said when it was asked `code` by the broker."""
    (folder, *_) = sorted(WIRE.glob(f"{code}-*/*/exchange.json"))
    for path in sorted(WIRE.glob(f"{code}-*/*/exchange.json")):
        if json.loads(path.read_text())["direction"] == "accepting side asks":
            folder = path
    return _frame(folder.with_name("response.bin"))


def _frame(path: Path) -> Command:
    (command,) = FrameParser().feed(path.read_bytes())
    return command


def differences(recorded: Command, ours: Command) -> list[str]:
    """How our answer differs in code, fields, their types, and the shape of the body."""
    if recorded.code != ours.code:
        return [f"code {recorded.code}, ours {ours.code} ({ours.remark})"]
    own = {name: value for name, value in ours.ext.items() if name not in _OURS}
    found = [f"field {name} is missing" for name in sorted(recorded.ext.keys() - own.keys())]
    found += [f"field {name} is more" for name in sorted(own.keys() - recorded.ext.keys())]
    for name in recorded.ext.keys() & own.keys():
        if _kind(recorded.ext[name]) != _kind(own[name]):
            found.append(f"field {name} is {recorded.ext[name]!r}, ours {own[name]!r}")
    return found + _bodies(bytes(recorded.body), bytes(ours.body))


def _bodies(recorded: bytes, ours: bytes) -> list[str]:
    if bool(recorded) != bool(ours):
        return [f"body of {len(recorded)} bytes, ours {len(ours)}"]
    try:
        theirs = loads(recorded)
    except JsonError:
        return []
    try:
        return list(_shapes(theirs, loads(ours), "body", is_map=False))
    except JsonError as error:
        return [f"the body is no JSON here: {error}"]


def _shapes(theirs: Any, ours: Any, place: str, *, is_map: bool) -> Iterator[str]:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        if is_map:
            if theirs and ours:
                is_next = _has_data_for_keys(next(iter(theirs.values())))
                yield from _shapes(next(iter(theirs.values())), next(iter(ours.values())), place + "{}", is_map=is_next)
            return
        for name in sorted(theirs.keys() - ours.keys()):
            yield f"{place}.{name} is missing"
        for name in sorted(ours.keys() - theirs.keys()):
            yield f"{place}.{name} is more"
        for name in sorted(theirs.keys() & ours.keys()):
            yield from _shapes(theirs[name], ours[name], f"{place}.{name}", is_map=name in _MAPS)
    elif isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours:
            yield from _shapes(theirs[0], ours[0], f"{place}[]", is_map=place.endswith("consumeStatsList"))
    elif _json_kind(theirs) != _json_kind(ours):
        yield f"{place} is {theirs!r:.60}, ours {ours!r:.60}"


def _has_data_for_keys(value: Any) -> bool:
    return isinstance(value, Mapping) and all(key[:1] == "{" or _NUMBER.fullmatch(key) for key in value)


def _json_kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _kind(text: str) -> str:
    if text in ("true", "false"):
        return "boolean"
    return "number" if _NUMBER.fullmatch(text) else "text"
