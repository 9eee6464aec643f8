"""Three controllers serve brokers and tools, on real connections; brokers are played by clients."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ha.controller.config import ControllerConfig
from ha.controller.header_forms import FORMS
from ha.controller.requests import GUARDED
from ha.controller.server import Controller
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.authority import AuthorityKeys
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.signature import Credentials
from tests.ha.controller.quorums import LIMIT_S, SECRET, until
from tests.limits import SLOWNESS
from tests.ports import free_ports

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
LEASE_MS = 300
PATIENT_MS = 600_000


def configs(folder: Path, count: int = 3, **others: Any) -> list[ControllerConfig]:
    """Of that many controllers on free ports."""
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_bytes(SECRET)
    ports = free_ports(count)
    given: dict[str, Any] = {
        "members": tuple((f"n{number}", f"127.0.0.1:{port}") for number, port in enumerate(ports)),
        "quorum_port_offset": 1,
        "store_path": folder,
        "secret_file": secret,
        "election_timeout_ms": int(400 * SLOWNESS),
        "lease_ms": LEASE_MS,
        "scan_interval_ms": 50,
        "scan_master_interval_ms": 50,
        "still_ms": PATIENT_MS,
    }
    return [
        ControllerConfig(
            **(given | others | {"self_id": f"n{number}", "listener": ListenerKeys(host="127.0.0.1", port=port)})
        )
        for number, port in enumerate(ports)
    ]


class Cluster:
    """The controllers, and the one that leads."""

    def __init__(self, controllers: list[Controller], addresses: list[str]) -> None:
        self.controllers = controllers
        self.addresses = addresses

    @property
    def leader(self) -> int | None:
        found = [number for number, one in enumerate(self.controllers) if one._leadership.leads]
        return found[0] if len(found) == 1 else None

    @property
    def leader_address(self) -> str:
        assert self.leader is not None
        return self.addresses[self.leader]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    wanted = configs(tmp_path_factory.mktemp("controllers"))
    found = Cluster([Controller(config) for config in wanted], [config.address for config in wanted])
    try:
        for controller in found.controllers:
            await controller.start()
        await until(lambda: found.leader is not None, "a leader")
        yield found
    finally:
        for controller in found.controllers:
            await controller.close()


class Broker:
    """One broker process in the eyes of the controllers: its own connections, heartbeats when told."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self.number = number
        self.address = f"127.0.0.1:{20000 + number}"
        self.told: list[Command] = []
        self.client = RemotingClient(self)

    def on_connected(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection) -> None: ...

    def on_request(self, connection: Connection, command: Command) -> None:
        self.told.append(command)

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> Command:
        ext = {"brokerName": self.name, "clusterName": "c"} | {key: str(value) for key, value in fields.items()}
        return await self.client.request(self.cluster.leader_address, Command(code, ext=ext, body=body), LIMIT_S)

    async def beat(self, number: int | None = None, **fields: object) -> Mapping[str, str]:
        """A heartbeat to all controllers, or to one; returns what the leading one answered."""
        ext = {"brokerName": self.name, "clusterName": "c", "brokerAddr": self.address, "brokerId": str(self.number)}
        ext |= {"heartbeatTimeoutMills": "5000"} | {key: str(value) for key, value in fields.items()}
        granted: Mapping[str, str] = {}
        for at, address in enumerate(self.cluster.addresses):
            if number in (None, at):
                answer = await self.client.request(address, Command(RequestCode.BROKER_HEARTBEAT, ext=ext), LIMIT_S)
                assert (answer.code, answer.remark) == (0, "Heart beat success")
                granted = answer.ext if at == self.cluster.leader else granted
        return granted

    async def register(self) -> None:
        code = f"{self.address};1700000000000"
        applied = await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=self.number, registerCheckCode=code
        )
        assert (applied.code, applied.ext) == (0, {"brokerName": self.name, "clusterName": "c"})
        registered = await self.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=self.number, brokerAddress=self.address
        )
        assert registered.code == 0

    async def elect(self, designated: bool = False, broker_id: int | None = None) -> Command:
        asked = self.number if broker_id is None else broker_id
        return await self.ask(
            RequestCode.CONTROLLER_ELECT_MASTER, brokerId=asked, designateElect=str(designated).lower()
        )

    async def alter(self, wanted: list[int], epoch: int, set_epoch: int) -> Command:
        body = json.dumps({"syncStateSet": wanted, "syncStateSetEpoch": set_epoch}).encode()
        return await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body, masterBrokerId=self.number, masterEpoch=epoch
        )

    async def close(self) -> None:
        await self.client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def group(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[list[Broker]]:
    """Three registered, living brokers of a name of their own; 1 is master, all are in sync; epochs 1 and 2."""
    brokers = [Broker(cluster, request.node.name[:200], number) for number in (1, 2, 3)]
    try:
        for broker in brokers:
            await broker.register()
            await broker.beat()
        assert (await brokers[0].elect()).code == 0
        assert (await brokers[0].alter([1, 2, 3], 1, 1)).code == 0
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()


async def master_of(broker: Broker) -> tuple[str | None, str | None]:
    ext = (await broker.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)).ext
    return ext.get("masterBrokerId"), ext.get("masterEpoch")


async def until_master(broker: Broker, wanted: tuple[str | None, str | None]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await master_of(broker) != wanted:
            await asyncio.sleep(0.02)


# ---- answers


async def test_a_broker_gets_an_id_registers_and_becomes_master(cluster: Cluster) -> None:
    broker = Broker(cluster, "fresh", 1)
    asked = await broker.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    assert asked.ext == {"brokerName": "fresh", "clusterName": "c", "nextBrokerId": "1"}
    await broker.register()
    assert (await broker.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)).ext["nextBrokerId"] == "2"
    await broker.beat()
    won = await broker.elect()
    assert won.ext == {
        "masterAddress": broker.address,
        "masterBrokerId": "1",
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    members = b'{"brokerAddrs":{1:"127.0.0.1:20001"},"brokerName":"fresh","cluster":"c"}'
    assert bytes(won.body) == b'{"brokerMemberGroup":' + members + b',"syncStateSet":[1]}'
    await broker.close()


async def test_a_set_grows_and_is_shown(group: list[Broker]) -> None:
    first = group[0]
    info = await first.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert info.ext == {"masterAddress": first.address, "masterBrokerId": "1", "masterEpoch": "1"}
    assert bytes(info.body) == b'{"syncStateSet":[1,2,3],"syncStateSetEpoch":2}'
    smaller = await first.alter([1, 2], 1, 2)
    assert (smaller.ext, bytes(smaller.body)) == (
        {"newSyncStateSetEpoch": "3"},
        b'{"syncStateSet":[1,2],"syncStateSetEpoch":3}',
    )
    assert (await first.alter([1, 3], 1, 2)).code == 2001
    shown = await first.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, json.dumps([first.name, "none"]).encode())
    table = loads(shown.body)["replicasInfoTable"]
    assert list(table) == [first.name]
    assert {one["brokerId"]: one["alive"] for one in table[first.name]["inSyncReplicas"]} == {1: True, 2: True}
    assert table[first.name]["notInSyncReplicas"] == [
        {"alive": True, "brokerAddress": "127.0.0.1:20003", "brokerId": 3, "brokerName": first.name}
    ]


async def test_a_silent_member_may_stay_in_the_set_and_a_silent_broker_does_not_get_into_it(
    group: list[Broker], cluster: Cluster
) -> None:
    first = group[0]
    await group[2].close()
    leading = cluster.controllers[cluster.leader or 0]
    await until(lambda: not leading._live.is_alive(first.name, 3, leading._now_ms()), "its silence")
    assert (await first.alter([1, 3], 1, 2)).code == 0
    assert (await first.alter([1], 1, 3)).code == 0
    assert (await first.alter([1, 3], 1, 3)).code == 2001, "3 was a member of that set"
    assert (await first.alter([1, 3], 1, 4)).code == 2006


async def test_a_living_master_stays(group: list[Broker]) -> None:
    kept = await group[1].elect()
    assert (kept.code, kept.ext["masterBrokerId"], kept.ext["masterEpoch"]) == (2011, "1", "1")
    assert bytes(kept.body) == b'{"syncStateSet":[1,2,3]}'


async def test_registration_tells_of_a_living_master_only(group: list[Broker]) -> None:
    code, address = RequestCode.CONTROLLER_REGISTER_BROKER, group[1].address
    told = await group[1].ask(code, brokerId=2, brokerAddress=address)
    assert told.ext["masterBrokerId"] == "1"
    assert bytes(told.body) == b'{"syncStateSet":[1,2,3],"syncStateSetEpoch":2}'
    assert (await group[0].alter([1], 1, 2)).code == 0  # so that nobody follows it
    await group[0].close()
    async with asyncio.timeout(LIMIT_S):
        while "masterBrokerId" in told.ext:
            told = await group[1].ask(code, brokerId=2, brokerAddress=address)
    assert told.code == 0


async def test_every_controller_knows_the_leader_and_the_others_refuse(cluster: Cluster) -> None:
    client = RemotingClient()
    for number, address in enumerate(cluster.addresses):
        shown = (await client.request(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))).ext
        assert shown["controllerLeaderAddress"] == cluster.leader_address
        assert shown["isLeader"] == str(number == cluster.leader).lower()
        assert shown["peers"] == "".join(f"n{one}:{at};" for one, at in enumerate(cluster.addresses))
        if number != cluster.leader:
            request = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext={"brokerName": "x"})
            refused = await client.request(address, request)
            assert (refused.code, refused.remark) == (2007, "The controller is not in leader state")
    await client.close()


async def test_settings_are_shown_and_changed(cluster: Cluster) -> None:
    broker = Broker(cluster, "settings", 1)
    assert (await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, b"processReadEvent=true")).code == 0
    assert b"processReadEvent=true" in bytes((await broker.ask(RequestCode.GET_CONTROLLER_CONFIG)).body)
    assert (await broker.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)).code == 2008  # by a command of its own
    assert (await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, b"processReadEvent=false")).code == 0
    assert (await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, b"controllerDLegerSelfId=n9")).code == 16
    await broker.close()


@pytest.mark.parametrize("code", [1014, 1015, 1016, 1017, 1018, 1007, 10, 999999])
async def test_what_upstreams_own_controller_does_not_serve_is_refused(cluster: Cluster, code: int) -> None:
    broker = Broker(cluster, "unknown", 1)
    refused = await broker.ask(code)
    assert (refused.code, refused.remark) == (3, f" request type {code} not supported")
    await broker.close()


@pytest.mark.parametrize("code", sorted(FORMS))
async def test_a_header_without_its_fields_is_refused_by_name(cluster: Cluster, code: int) -> None:
    client = RemotingClient()
    refused = await client.request(cluster.leader_address, Command(code, ext={}))
    assert refused.code in (1, 2005)
    assert "is missing" in (refused.remark or "") or "brokerId" in (refused.remark or "")
    await client.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"syncStateSet":[],"syncStateSetEpoch":1}', b"x" * 100])
async def test_a_bad_set_is_refused(group: list[Broker], body: bytes) -> None:
    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    assert (await group[0].ask(code, body, masterBrokerId=1, masterEpoch=1)).code == 1


@pytest.mark.parametrize("ids", ["x", "1;x", "-1", ";".join(map(str, range(100)))])
async def test_bad_ids_are_refused(group: list[Broker], ids: str) -> None:
    assert (await group[0].ask(RequestCode.CLEAN_BROKER_DATA, brokerControllerIdsToClean=ids)).code == 2009


async def test_long_names_are_refused(cluster: Cluster) -> None:
    broker = Broker(cluster, "n" * 256, 1)
    refused = await broker.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=1, registerCheckCode="a;1")
    assert (refused.code, refused.remark) == (1, "field brokerName has 256 characters, at most 255")
    await broker.close()


async def test_a_second_process_with_an_id_is_refused_and_gets_no_lease(group: list[Broker], cluster: Cluster) -> None:
    """A copy of a disk that is started elsewhere: two masters with one id would both acknowledge."""
    assert "lease" in await group[0].beat(holdsLease="true")
    copy = Broker(cluster, group[0].name, 1)
    copy.address = "127.0.0.1:30001"
    code = RequestCode.CONTROLLER_REGISTER_BROKER
    refused = await copy.ask(code, brokerId=1, brokerAddress=copy.address)
    assert refused.code == 2014 and group[0].address in (refused.remark or "")
    heard = await copy.ask(RequestCode.BROKER_HEARTBEAT, brokerId=1, brokerAddr=copy.address, holdsLease="true")
    assert heard.code == 2014 and "lease" not in heard.ext
    await copy.close()


async def test_a_master_learns_which_brokers_of_its_name_have_no_room(group: list[Broker]) -> None:
    assert "withoutRoom" not in await group[0].beat(holdsLease="true")
    assert "withoutRoom" not in await group[1].beat(holdsLease="true", withoutRoom="true")
    assert (await group[0].beat(holdsLease="true"))["withoutRoom"] == "2"
    await group[1].beat(holdsLease="true")
    assert "withoutRoom" not in await group[0].beat(holdsLease="true")


# ---- failover


async def test_a_master_whose_connections_close_is_replaced_at_once(group: list[Broker]) -> None:
    """RocketMQ's brokers hold no leases: nothing is waited for."""
    await group[2].beat(maxOffset=500, epoch=1)
    await group[1].beat(maxOffset=400, epoch=1)
    await group[0].close()
    await until_master(group[1], ("3", "2"))
    info = await group[1].ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert bytes(info.body) == b'{"syncStateSet":[3],"syncStateSetEpoch":3}'


async def test_a_silent_master_is_replaced(group: list[Broker]) -> None:
    await group[0].beat(heartbeatTimeoutMills=200)
    await until_master(group[1], ("2", "2"))


async def test_a_dead_follower_is_replaced_by_nobody(group: list[Broker]) -> None:
    await group[2].close()
    await asyncio.sleep(0.5)
    assert await master_of(group[1]) == ("1", "1")


async def test_living_replicas_are_told_of_the_new_master(group: list[Broker]) -> None:
    listener = await asyncio.start_server(lambda reader, writer: heard.set_result((reader, writer)), "127.0.0.1", 0)
    heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        group[1].address = address
        await group[1].beat()
        await group[1].ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=2, brokerAddress=address)
        assert (await group[0].elect(designated=True, broker_id=2)).code == 0
        reader, writer = await asyncio.wait_for(heard, LIMIT_S)
        frame = await asyncio.wait_for(reader.readuntil(b'"syncStateSetEpoch":3}'), LIMIT_S)
        assert b'"code":1008' in frame
        assert b'"masterEpoch":"2"' in frame
        assert frame.endswith(b'{"syncStateSet":[2],"syncStateSetEpoch":3}')
        writer.close()


async def test_nobody_of_the_set_left_is_nobody_elected(group: list[Broker]) -> None:
    assert (await group[0].alter([1], 1, 2)).code == 0
    await group[0].close()
    await until_master(group[1], (None, "2"))
    assert (await group[1].elect()).code == 2012


# ---- leases


async def test_a_master_gets_leases_and_a_successor_waits_for_the_last(group: list[Broker]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S):
        while "lease" not in (granted := await group[0].beat(holdsLease="true")):  # until the leader's own wait is over
            await asyncio.sleep(0.05)
    assert granted["lease"] == str(LEASE_MS)
    assert "lease" not in await group[1].beat(holdsLease="true")  # no master
    asked = loop.time()
    assert "lease" in await group[0].beat(holdsLease="true")
    await group[0].close()
    await until_master(group[1], ("2", "2"))
    assert loop.time() - asked >= LEASE_MS / 1000


@contextlib.asynccontextmanager
async def still_after(broker: Broker, silence_ms: int) -> AsyncIterator[None]:
    """For this time, a master of leases that is silent for so long is replaced."""
    await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, f"masterSilence={silence_ms}".encode())
    try:
        yield
    finally:
        await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, f"masterSilence={PATIENT_MS}".encode())


async def beats_of(broker: Broker) -> None:
    while True:
        await broker.beat(holdsLease="true", heartbeatTimeoutMills=PATIENT_MS)
        await asyncio.sleep(0.05)


async def test_a_master_that_stands_still_is_replaced_before_it_counts_as_dead(
    group: list[Broker], cluster: Cluster
) -> None:
    """Its connections stay open; a follower of the set is heard."""
    await group[0].beat(holdsLease="true", heartbeatTimeoutMills=PATIENT_MS)
    other = asyncio.create_task(beats_of(group[1]))
    async with still_after(group[2], int(300 * SLOWNESS)):
        await until_master(group[2], ("2", "2"))
    other.cancel()
    leading = cluster.controllers[cluster.leader or 0]
    assert leading._live.is_alive(group[0].name, 1, leading._now_ms())
    assert (await group[0].beat(holdsLease="true"))["masterEpoch"] == "2"


async def test_a_master_that_stands_still_has_no_successor_before_its_lease_is_over(group: list[Broker]) -> None:
    """The controllers may hear of the shorter silence, and begin, at any time after the last lease was asked for."""
    loop = asyncio.get_running_loop()
    asked = loop.time()
    async with asyncio.timeout(LIMIT_S):
        while "lease" not in await group[0].beat(holdsLease="true"):
            await asyncio.sleep(0.05)
            asked = loop.time()
    async with still_after(group[1], 1):
        await group[1].elect()
        await until_master(group[1], ("2", "2"))
    assert loop.time() - asked >= LEASE_MS / 1000


async def test_a_master_that_stands_still_stays_when_all_others_do(group: list[Broker]) -> None:
    for broker in group:
        await broker.beat(holdsLease="true", heartbeatTimeoutMills=PATIENT_MS)
    async with still_after(group[1], 1):
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert await master_of(group[1]) == ("1", "1")


async def test_a_planned_change_ends_the_leases_of_a_master_that_does_not_hand_over(group: list[Broker]) -> None:
    loop = asyncio.get_running_loop()
    await group[0].beat(holdsLease="true")
    change = asyncio.ensure_future(group[1].elect(designated=True))
    granted = asked = loop.time()
    async with asyncio.timeout(LIMIT_S):
        while "lease" in await group[0].beat(holdsLease="true"):
            granted, asked = asked, loop.time()
            await asyncio.sleep(0.02)
    assert (await change).code == 0
    assert loop.time() - granted >= LEASE_MS / 1000
    assert await master_of(group[1]) == ("2", "2")


# ---- one that is open, and one that is not


async def test_changes_must_be_signed_where_there_is_a_secret(tmp_path: Path) -> None:
    """As with a nameserver, whose tests cover the signature itself."""
    secret = tmp_path / "requests"
    secret.touch(0o600)
    secret.write_bytes(b"r" * 32)
    (config,) = configs(tmp_path, 1, authority=AuthorityKeys(secret_file=secret))
    controller = Controller(config)
    await controller.start()
    try:
        await until(lambda: controller._leadership.leads, "the only controller leads")
        right, wrong = Credentials("any", "r" * 32), Credentials("any", "w" * 32)
        for credentials, code in ((None, 16), (wrong, 16), (right, 2010)):
            client = RemotingClient(credentials=credentials)
            ext = {"brokerName": "x", "clusterName": "c", "brokerId": "1", "designateElect": "true"}
            answer = await client.request(config.address, Command(RequestCode.CONTROLLER_ELECT_MASTER, ext=ext))
            assert (answer.code, "challenge" in answer.ext) == (code, code == 16)
            read = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext={"brokerName": "x"})
            assert (await client.request(config.address, read)).code == 2008
            await client.close()
    finally:
        await controller.close()


async def test_every_request_that_changes_something_is_guarded(cluster: Cluster) -> None:
    reads = {1004, 1005, 1006, 1010, 1012}
    controller = cluster.controllers[0]
    assert {*controller._quick, *controller._slow} - GUARDED == reads


# ---- the last test: it takes the leader away


async def test_the_groups_outlive_the_leading_controller(group: list[Broker]) -> None:
    cluster = group[0].cluster
    first = cluster.leader
    assert first is not None
    await cluster.controllers[first].close()
    del cluster.controllers[first], cluster.addresses[first]
    await until(lambda: cluster.leader is not None, "another controller leads")
    for broker in group:
        await broker.beat()
    assert await master_of(group[1]) == ("1", "1")
    await group[0].close()
    await until_master(group[1], ("2", "2"))


async def test_a_master_that_has_resigned_is_replaced_without_a_wait(group: list[Broker]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while "lease" not in await group[0].beat(holdsLease="true"):
            await asyncio.sleep(0.05)
    code = RequestCode.CONTROLLER_ELECT_MASTER
    late = await group[0].ask(code, designateElect="true", brokerId=2, resignedEpoch=7)
    assert late.code == 2000, "of another epoch than the master's"
    await group[0].beat(holdsLease="true")
    began = asyncio.get_running_loop().time()
    won = await group[0].ask(code, designateElect="true", brokerId=2, resignedEpoch=1)
    assert (won.code, won.ext["masterBrokerId"], won.ext["masterEpoch"]) == (0, "2", "2")
    assert asyncio.get_running_loop().time() - began < LEASE_MS / 1000
    assert "lease" in await group[1].beat(holdsLease="true"), "the lease that was given back holds nobody up"


async def test_that_a_master_has_resigned_is_believed_only_from_itself(
    group: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever else may elect could have two masters acknowledge at one time; the lease is waited for then."""
    async with asyncio.timeout(LIMIT_S):
        while "lease" not in await group[0].beat(holdsLease="true"):
            await asyncio.sleep(0.05)
    code = RequestCode.CONTROLLER_ELECT_MASTER
    leading = group[0].cluster.controllers[group[0].cluster.leader or 0]
    given_back: list[tuple[str, int]] = []
    grants = leading._leadership._grants
    give_back = grants.give_back

    def note(name: str, master_id: int) -> None:
        given_back.append((name, master_id))
        give_back(name, master_id)

    monkeypatch.setattr(grants, "give_back", note)
    won = await group[2].ask(code, designateElect="true", brokerId=2, resignedEpoch=1)
    assert (won.code, won.ext["masterBrokerId"], given_back) == (0, "2", [])
    await group[1].beat(holdsLease="true")
    assert (await group[1].alter([1, 2], 2, 3)).code == 0
    won = await group[1].ask(code, designateElect="true", brokerId=1, resignedEpoch=2)
    assert (won.code, won.ext["masterBrokerId"], given_back) == (0, "1", [(group[0].name, 2)])


async def test_a_heartbeat_from_another_address_is_refused_while_the_broker_lives(group: list[Broker]) -> None:
    """A copy of its store, or another process with its id: its lease and its death would count as the broker's."""
    await group[0].beat()
    elsewhere = "127.0.0.1:29999"
    refused = await group[2].ask(RequestCode.BROKER_HEARTBEAT, brokerId=1, brokerAddr=elsewhere)
    assert (refused.code, refused.remark) == (
        2014,
        f"broker 1 of {group[0].name} lives at {group[0].address}: is its store used twice, from a copy?",
    )
    await group[2].close()
    await asyncio.sleep(0.1)
    assert await master_of(group[1]) == ("1", "1"), "the end of that connection ends nobody's life"
    await group[0].close()
    moved = await group[1].ask(RequestCode.BROKER_HEARTBEAT, brokerId=1, brokerAddr=elsewhere)
    assert moved.code == 0, "after the end of its connection it may live elsewhere"


async def test_an_administrator_has_the_master_hand_over(group: list[Broker]) -> None:
    assert "successor" not in await group[0].beat(holdsLease="true")
    await group[1].beat(holdsLease="true")
    electing = asyncio.create_task(group[2].elect(designated=True, broker_id=2))
    async with asyncio.timeout(LIMIT_S):
        while (await group[0].beat(holdsLease="true")).get("successor") != "2":
            await asyncio.sleep(0.01)
    await group[0].ask(RequestCode.CONTROLLER_ELECT_MASTER, designateElect="true", brokerId=2, resignedEpoch=1)
    won = await electing
    assert (won.code, won.ext["masterBrokerId"], won.ext["masterEpoch"]) == (0, "2", "2")
    assert "successor" not in await group[1].beat(holdsLease="true")
