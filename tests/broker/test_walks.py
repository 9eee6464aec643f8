"""The walks of docs/architecture.md: an admin request passes the files that the page names, and so does a key."""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from broker.append.appender import Appender
from broker.state.tables import ReplicatedState
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.connection import Connection
from node.keys import KEYS_OF_FILES
from tests.broker.conftest import Desk, MemoryClient, make_topic

_ROOT = Path(__file__).parents[2]
_ROOMS = tuple(path.parent.name for path in _ROOT.glob("*/__init__.py"))
_NOT_COUNTED = ("store/log/", "broker/timers.py")
"""The log below the store is a walk of its own; timers only run what others give them."""
_FILES_OF_REQUEST_MAX = 9
_FILES_OF_KEY_MAX = 4
_NOT_WALKED = ("chaos/", "cli/")
"""Simulations set keys as tests do, and the local cluster writes them into files as users do."""


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files on the call stack whenever a record is added to the log or applied, or a request answered."""
    files: set[str] = set()

    def watch(owner: type, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def run(*args: Any, **more: Any) -> Any:
            frame: FrameType | None = sys._getframe(1)
            files.add(real.__code__.co_filename)
            while frame is not None:
                files.add(frame.f_code.co_filename)
                frame = frame.f_back
            return real(*args, **more)

        monkeypatch.setattr(owner, name, run)

    watch(Appender, "add")
    watch(ReplicatedState, "apply")
    watch(Connection, "respond")
    return files


def of_rooms(files: set[str]) -> set[str]:
    """Those of the program, relative to the checkout, without what the page leaves out."""
    names = {str(Path(file).relative_to(_ROOT)) for file in files if Path(file).is_relative_to(_ROOT)}
    return {name for name in names if name.startswith(_ROOMS) and not name.startswith(_NOT_COUNTED)}


def on_the_page() -> set[str]:
    """The files of the numbered steps of the admin request."""
    page = (_ROOT / "docs" / "architecture.md").read_text()
    walk = page.split("**An admin request**")[1].split("\n\n")[1]
    return {name for line in walk.splitlines() for name in re.findall(r"^\d+\. `([\w/.]+)`", line)}


async def test_a_request_about_a_topic_passes_the_files_of_the_page(
    desk: Desk, client: MemoryClient, passed: set[str]
) -> None:
    await make_topic(client, "T")
    files = of_rooms(passed) | {"broker/admin/registration.py"}  # a desk has no nameservers
    assert files == on_the_page()
    assert len(files) <= _FILES_OF_REQUEST_MAX


async def test_a_request_about_a_group_passes_no_more_files(desk: Desk, client: MemoryClient, passed: set[str]) -> None:
    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=orjson.dumps({"groupName": "G"}))
    assert "G" in desk.parts.context.state.groups
    assert "broker/groups/group_requests.py" in of_rooms(passed)
    assert len(of_rooms(passed)) <= _FILES_OF_REQUEST_MAX


def test_a_key_passes_the_files_of_the_page() -> None:
    page = (_ROOT / "docs" / "architecture.md").read_text()
    walk = page.split("**A configuration key**")[1].split("**A mode of replication**")[0]
    files = [file for room in _ROOMS for file in (_ROOT / room).rglob("*.py")]
    field = re.compile(r"\bcommit_interval_ms\b")
    found = {str(file.relative_to(_ROOT)) for file in files if field.search(file.read_text())}
    assert found == set(re.findall(r"^\d+\. `([\w/.]+)`", walk, re.MULTILINE))
    assert len(found) <= _FILES_OF_KEY_MAX


def test_no_key_but_those_of_the_page_passes_more_files() -> None:
    """A file counts that has the key's name as a text, or its field, where no other class has a field of this name."""
    naming: dict[str, set[str]] = defaultdict(set)
    declaring: Counter[str] = Counter()
    using: dict[str, set[str]] = defaultdict(set)
    for file in (file for room in _ROOMS for file in (_ROOT / room).rglob("*.py")):
        name = str(file.relative_to(_ROOT))
        if name.startswith(_NOT_WALKED):
            continue
        text = re.sub(r"^(from|import) .*", "", file.read_text(), flags=re.MULTILINE)
        for word in set(re.findall(r'"(\w+)"', text)):
            naming[word].add(name)
        fields = re.findall(r"^    (\w+): ", text, re.MULTILINE)
        declaring.update(fields)
        for word in {*fields, *re.findall(r"\.(\w+)", text), *re.findall(r"\b(\w+)=", text)}:
            using[word].add(name)
    keys = {name: key for table in KEYS_OF_FILES.values() for name, key in table.items() if key.path}
    passed = {
        name: naming[name] | (using[key.path[-1]] if declaring[key.path[-1]] == 1 else set())
        for name, key in keys.items()
    }
    wider = {name: files for name, files in passed.items() if len(files) > _FILES_OF_KEY_MAX}
    page = (_ROOT / "docs" / "architecture.md").read_text()
    [told] = re.findall(r"pass at most four files, but for (\d+):\n([^.]*)\.", page)
    assert wider.keys() == set(re.findall(r"`(\w+)`", told[1])), wider
    assert len(wider) == int(told[0])
