"""Settings changed while the broker runs: taken, refused, and never the dangerous ones."""

from collections.abc import Mapping

import pytest

from broker.admin.live_config import LiveConfig, read_setting
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Refusal
from node.keys import BROKER_KEYS
from tests.broker.conftest import Desk, MemoryClient

UPDATE = RequestCode.UPDATE_BROKER_CONFIG


@pytest.fixture
def changed(desk: Desk) -> list[str]:
    """A desk that takes settings; notes what has changed."""
    notes: list[str] = []
    desk.config.insecure_settings = True
    live = LiveConfig(desk.config, BROKER_KEYS, lambda _: None, notes.extend)
    desk.parts.handler.serve({UPDATE: live.update})
    return notes


async def update(client: MemoryClient, body: bytes) -> Command:
    return await client.ask(UPDATE, {}, body)


async def shown(client: MemoryClient) -> dict[str, str]:
    answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
    return dict(line.split("=", 1) for line in bytes(answer.body).decode().splitlines())


async def test_settings_are_taken_and_shown(desk: Desk, client: MemoryClient, changed: list[str]) -> None:
    answer = await update(client, b"# from mqadmin\ntransactionCheckMax=14\n\nenablePropertyFilter = true\n")
    assert answer.code == 0, answer
    assert desk.config.transaction_check_max == 14
    assert desk.config.property_filter
    table = await shown(client)
    assert (table["transactionCheckMax"], table["enablePropertyFilter"]) == ("14", "true")
    assert changed == ["transactionCheckMax", "enablePropertyFilter"]
    assert (await update(client, b"brokerPermission=4")).code == 0
    assert changed[2:] == ["brokerPermission"]
    assert desk.config.broker_permission == 4


async def test_without_users_nobody_changes_settings_unless_told_so(
    desk: Desk, client: MemoryClient, changed: list[str]
) -> None:
    desk.config.insecure_settings = False
    for body in (b"transactionCheckMax=14\n", b"fileReservedTime=0\n", b"sendThreadPoolQueueCapacity=5\n", b""):
        answer = await update(client, body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "insecureSettings" in (answer.remark or "")
    assert changed == []


async def test_a_key_without_effect_is_taken_and_shown(client: MemoryClient, changed: list[str]) -> None:
    assert (await update(client, b"sendThreadPoolQueueCapacity=5")).code == 0
    assert (await shown(client))["sendThreadPoolQueueCapacity"] == "5"


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"=1", ResponseCode.INVALID_PARAMETER, "line 1"),
        (b"longPollingEnable", ResponseCode.INVALID_PARAMETER, "line 1"),
        (b"\xff=1", ResponseCode.INVALID_PARAMETER, "UTF-8"),
        (b"longPolingEnable=true", ResponseCode.INVALID_PARAMETER, "longPollingEnable"),
        (b"longPollingEnable=perhaps", ResponseCode.INVALID_PARAMETER, "longPollingEnable"),
        (b"listenPort=1", ResponseCode.SYSTEM_ERROR, "listenPort"),
        (b"brokerIP1=evil", ResponseCode.SYSTEM_ERROR, "brokerIP1"),
        (b"filterServerNums=1", ResponseCode.NO_PERMISSION, "black list"),
        (b"rocketmqHome=$(touch /tmp/x)", ResponseCode.NO_PERMISSION, "black list"),
        (b"brokerConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "black list"),
        (b"configBlackList=", ResponseCode.NO_PERMISSION, "black list"),
    ],
)
async def test_what_is_refused_changes_nothing(
    desk: Desk, client: MemoryClient, changed: list[str], body: bytes, code: int, remark: str
) -> None:
    before = await shown(client)
    answer = await update(client, b"transactionCheckMax=3\n" + body if body else body)
    assert answer.code == code, answer
    assert remark.replace("line 1", "line") in (answer.remark or "")
    assert await shown(client) == before


@pytest.mark.parametrize("desk", [{"config_black_list": ("transactionCheckMax",)}], indirect=True)
async def test_the_configurations_own_black_list_is_kept_to(
    desk: Desk, client: MemoryClient, changed: list[str]
) -> None:
    for body in (b"transactionCheckMax=3", b"longPollingEnable=true\ntransactionCheckMax=3", b"rocketmqHome=/x"):
        answer = await update(client, body)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    assert (desk.config.transaction_check_max, changed) == (15, [])


async def test_what_cannot_be_kept_is_not_changed(desk: Desk, client: MemoryClient) -> None:
    def keep(_: Mapping[str, str]) -> None:
        raise OSError(28, "No space left on device")

    desk.config.insecure_settings = True
    desk.parts.handler.serve({UPDATE: LiveConfig(desk.config, BROKER_KEYS, keep, lambda _: None).update})
    answer = await update(client, b"transactionCheckMax=3")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "No space left" in (answer.remark or "")
    assert desk.config.transaction_check_max == 15


async def test_parts_without_an_assembly_take_no_settings(client: MemoryClient) -> None:
    assert (await update(client, b"transactionCheckMax=3")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_of_an_unknown_key_only_the_start_is_compared_and_shown() -> None:
    key = "".join(chr(0x4E00 + n) for n in range(20_000))
    with pytest.raises(Refusal) as caught:
        read_setting(BROKER_KEYS, key, "1")
    assert caught.value.remark == f"key {key[:100]!r} is unknown; no known key is like it"
