"""Asks nameservers, masters and controllers for the roles of brokers.

Source: RocketMQ `RouteInfoManager.getAllClusterInfo` (request 106).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import RemotingError
from node.errors import CommandError

_SHORT_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerTable:
    """The brokers registered at a nameserver: broker name -> broker id -> address."""

    brokers: dict[str, dict[int, str]]

    def role_of(self, address: str) -> str:
        """Return `master` or `slave`, or `unknown` if no broker with this address is registered."""
        for ids in self.brokers.values():
            for broker_id, registered in ids.items():
                if registered == address:
                    return "master" if broker_id == 0 else "slave"
        return "unknown"

    def masters(self) -> list[str]:
        """Return the address of each broker name's master, in the order of the names."""
        return [ids[0] for _, ids in sorted(self.brokers.items()) if 0 in ids]


async def ask_brokers(client: RemotingClient, namesrv: str, *, timeout_s: float = 3.0) -> BrokerTable:
    """Return the table of the nameserver at `namesrv`.

    Raises:
        CommandError: it cannot be reached, or answers with an error.
    """
    answer = await request(client, namesrv, Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_s)
    try:
        table = loads(answer.body).get("brokerAddrTable", {})
        return BrokerTable(
            {name: {int(key): str(value) for key, value in data["brokerAddrs"].items()} for name, data in table.items()}
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CommandError(
            f"nameserver {namesrv} answered with a broker table that cannot be read: {error!r}"
        ) from error


async def ask_first(client: RemotingClient, nameservers: Sequence[str], *, timeout_s: float = 3.0) -> BrokerTable:
    """Return the table of the first nameserver that answers, asked one after the other.

    Raises:
        CommandError: none is named, or none answers; the text has the error of the last one.
    """
    failure = CommandError("no nameserver is named")
    for namesrv in nameservers:
        try:
            return await ask_brokers(client, namesrv, timeout_s=timeout_s)
        except CommandError as error:
            failure = error
    raise failure


@dataclass(frozen=True, slots=True)
class CopyState:
    """A slave according to its master: whether it is in sync, and how many bytes of the log it lacks."""

    in_sync: bool
    lag_bytes: int


async def ask_copies(client: RemotingClient, master: str) -> dict[str, CopyState]:
    """Return the slaves that are connected to the broker at address `master`, by their address for clients.

    Raises:
        CommandError: it cannot be reached, or answers with an error.
    """
    answer = await request(client, master, Command(RequestCode.GET_BROKER_HA_STATUS), _SHORT_S)
    try:
        slaves = loads(answer.body)["haConnectionInfo"]
        return {str(slave["addr"]): CopyState(bool(slave["inSync"]), int(slave["diff"])) for slave in slaves}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{master} answered with a state of its slaves that cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A broker name according to a controller: the leading controller, the master's epoch, the in-sync set.

    Attributes:
        leader: address of the leading controller.
        in_sync: addresses of the in-sync set.
    """

    leader: str
    epoch: int
    in_sync: tuple[str, ...]


async def ask_controllers(client: RemotingClient, controllers: Sequence[str], name: str) -> GroupStatus:
    """Ask the controllers for the status of broker name `name`.

    Raises:
        CommandError: no controller that leads answers.
    """
    error = CommandError("there are no controllers")
    body = json.dumps([name]).encode()
    for address in controllers:
        try:
            command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
            answer = await request(client, address, command, _SHORT_S)
            group = loads(answer.body)["replicasInfoTable"].get(name, {})
            in_sync = tuple(str(one["brokerAddress"]) for one in group.get("inSyncReplicas", ()))
            return GroupStatus(address, int(group.get("masterEpoch", 0)), in_sync)
        except CommandError as failure:
            error = failure
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            error = CommandError(f"the answer of controller {address} cannot be read: {failure!r}")
    raise error


async def transfer_leadership(client: RemotingClient, leader: str, target: str) -> None:
    """Ask the leader at address `leader` to hand over to `target`: in Raft mode a node id, else a broker's address.

    Raises:
        CommandError: the leader cannot be reached, or refuses.
    """
    from broker.admin.transfer import TRANSFER_LEADERSHIP  # loads modules that only this command needs

    await request(client, leader, Command(TRANSFER_LEADERSHIP, ext={"target": target}), 5.0)


async def request(client: RemotingClient, address: str, command: Command, timeout_s: float = 3.0) -> Command:
    """Return the answer of a server to a request.

    Raises:
        CommandError: it does not answer, or refuses.
    """
    try:
        answer = await client.request(address, command, timeout_s)
    except RemotingError as error:
        raise CommandError(f"{address} does not answer: {error}") from error
    if answer.code != 0:
        raise CommandError(f"{address} refused: {answer.remark or f'code {answer.code}'}")
    return answer
