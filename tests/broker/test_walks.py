"""The walks of docs/architecture.md: an admin request passes the files that the page names, and so does a key."""

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest
from mypy.build import build
from mypy.main import process_options
from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

from broker.append.appender import Appender
from broker.state.tables import ReplicatedState
from ha.controller.config import ControllerConfig
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.config_key import Key, keys_of
from ledgermq.remoting.connection import Connection
from nameserver.config import NameServerConfig
from node.node_config import NodeConfig
from tests.broker.conftest import Desk, MemoryClient, make_topic
from tests.limits import IS_WHOLE

_ROOT = Path(__file__).parents[2]
_ROOMS = tuple(path.parent.name for path in _ROOT.glob("*/__init__.py"))
_NOT_COUNTED = ("store/log/", "broker/timers.py")
"""The log below the store is a walk of its own; timers only run what others give them."""
_FILES_OF_REQUEST_MAX = 9
_FILES_OF_KEY_MAX = 4
_NOT_WALKED = ("chaos", "cli", "ledgermq/testing", "tests", "benchmarks")
"""Simulations set keys as tests do, and local clusters write them into files as users do."""
_FIELDS_OF_REQUESTS = ("brokerName", "brokerId")
"""Keys whose names are fields of requests and answers, too; there they mean any broker."""


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


def keys_and_classes() -> Iterator[tuple[Key, str]]:
    """Every key that has an effect, with `module.Class.field` of its declaration."""
    for settings in (NodeConfig, NameServerConfig, ControllerConfig):
        for key in keys_of(settings).values():
            owner: type = settings
            for section in key.path[:-1]:
                [field] = [field for field in fields(owner) if field.name == section]
                owner = next(value for value in field.metadata.values() if isinstance(value, type))
            if key.path:
                yield key, f"{owner.__module__}.{owner.__qualname__}.{key.path[-1]}"


def naming_files() -> dict[str, set[str]]:
    """The files that have a word as a text, by word."""
    naming: dict[str, set[str]] = defaultdict(set)
    for file in (file for room in _ROOMS for file in (_ROOT / room).rglob("*.py")):
        name = str(file.relative_to(_ROOT))
        for word in set(re.findall(r'"(\w+)"', file.read_text())):
            if word not in _FIELDS_OF_REQUESTS or name in ("broker/config.py", "broker/role.py") or "node/" in name:
                naming[word].add(name)
    return naming


def too_wide(using: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The keys that pass more files than allowed; `using` has the files that use a field, by its declaration."""
    naming = naming_files()
    passed = {key.name: {*naming[key.name], *using[path]} for key, path in keys_and_classes()}
    assert len(passed) > 250
    passed = {name: {file for file in files if not file.startswith(_NOT_WALKED)} for name, files in passed.items()}
    return {name: files for name, files in passed.items() if len(files) > _FILES_OF_KEY_MAX}


def test_no_key_passes_more_than_four_files() -> None:
    """A file counts that has the key's name as a text, or its field, where no other class has a field of this name."""
    declaring: Counter[str] = Counter()
    words: dict[str, set[str]] = defaultdict(set)
    for file in (file for room in _ROOMS for file in (_ROOT / room).rglob("*.py")):
        text = re.sub(r"^(from|import) .*", "", file.read_text(), flags=re.MULTILINE)
        found = re.findall(r"^    (\w+): ", text, re.MULTILINE)
        declaring.update(found)
        for word in {*found, *re.findall(r"\.(\w+)", text), *re.findall(r"\b(\w+)=", text)}:
            words[word].add(str(file.relative_to(_ROOT)))
    using = {path: words[path.rsplit(".", 1)[1]] for _, path in keys_and_classes()}
    assert not too_wide(
        {path: found if declaring[path.rsplit(".", 1)[1]] == 1 else set() for path, found in using.items()}
    )


@pytest.mark.skipif(not IS_WHOLE, reason="needs half a minute of processor time; make test-all")
def test_no_key_passes_more_than_four_files_by_types() -> None:
    """As above, for all keys: mypy tells of which class an attribute is."""
    using: dict[str, set[str]] = {
        path: {path.rsplit(".", 2)[0].replace(".", "/") + ".py"} for _, path in keys_and_classes()
    }

    class Uses(Plugin):
        def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
            def note(context: AttributeContext) -> Type:
                if context.context.line > 0:  # else a class is compared with a protocol
                    using[fullname].add(str(Path(context.api.path).resolve().relative_to(_ROOT)))
                return context.default_attr_type

            return note if fullname in using else None

    rooms = [str(_ROOT / room) for room in _ROOMS if room not in ("tests", "benchmarks", *_NOT_WALKED)]
    sources, options = process_options(["--config-file", str(_ROOT / "pyproject.toml"), *rooms])
    options.incremental, options.cache_dir = False, os.devnull
    assert not build(sources, options, extra_plugins=[Uses(options)]).errors
    assert sum(map(len, using.values())) > 400
    assert not too_wide(using)
