"""docs/compatibility.md is true to the letter: what it says of each request is what brokers and nameservers do."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.admin.unserved import REASONS
from ha.controller.config import ControllerConfig
from ha.controller.server import Controller
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from tests.broker.conftest import Desk
from tests.mqadmin.cases import CASES

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\w+) \| (.+) \|$", re.MULTILINE)
_SERVED_WITH_THE_LISTENER = {RequestCode.UPDATE_BROKER_CONFIG}


@pytest.fixture
def rows() -> Mapping[int, tuple[str, str, str]]:
    """Name, server and how, by code."""
    found = {int(code): (name, who, how) for code, name, who, how in ROW.findall(PAGE)}
    assert len(found) == len(ROW.findall(PAGE)), "a code stands twice"
    return found


def test_every_known_request_is_in_the_table_under_its_name(rows: Mapping[int, tuple[str, str, str]]) -> None:
    known = {value: name for name, value in vars(RequestCode).items() if isinstance(value, int)}
    assert {code: rows[code][0] for code in known if code in rows} == known
    assert set(rows) == known.keys() | REASONS.keys()


async def test_a_broker_serves_what_the_table_says(desk: Desk, rows: Mapping[int, tuple[str, str, str]]) -> None:
    said = {code for code, (_, who, how) in rows.items() if who == "broker" and not how.startswith("not: ")}
    private = {code for code in desk.parts.handler.codes if code // 1000 == 53}
    assert said == (desk.parts.handler.codes - private) | _SERVED_WITH_THE_LISTENER


def test_the_reasons_are_those_that_clients_read(rows: Mapping[int, tuple[str, str, str]]) -> None:
    for code, (_, who, how) in rows.items():
        if who == "broker" and how.startswith("not: "):
            assert how == f"not: {REASONS[code]}"
        if who == "client":
            assert REASONS[code] == "brokers ask it of clients"
        if who in ("nameserver", "controller"):
            assert REASONS[code] == f"{who}s serve it"


async def test_a_nameserver_serves_what_the_table_says(
    tmp_path: Path, rows: Mapping[int, tuple[str, str, str]]
) -> None:
    config = NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=tmp_path / "kv.json")
    server = NameServer(config)
    await server.start()
    try:
        assert {code for code, (_, who, _) in rows.items() if who == "nameserver"} == set(server._handlers)
    finally:
        await server.close()


def test_a_controller_serves_what_the_table_says(rows: Mapping[int, tuple[str, str, str]], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    secret.chmod(0o600)
    config = ControllerConfig(members=(("n0", "127.0.0.1:1"),), self_id="n0", secret_file=secret)
    controller = Controller(config)
    said = {code for code, (_, who, _) in rows.items() if who == "controller"}
    assert said | {RequestCode.BROKER_HEARTBEAT} == {*controller._quick, *controller._slow}


def test_each_difference_that_the_table_names_is_described(rows: Mapping[int, tuple[str, str, str]]) -> None:
    described = PAGE.split("## Requests")[0]
    for code, (_, _, how) in rows.items():
        if how.startswith("differently: "):
            word = how.removeprefix("differently: ").split(",")[0]
            assert re.search(rf"^\| {word}\b", described, re.MULTILINE), (code, how)


def test_every_command_that_differs_says_why() -> None:
    assert all(case.differs is None or len(case.differs.split()) > 3 for case in CASES)
