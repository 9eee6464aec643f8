"""A broker's requests to the leading controller, and its heartbeats to each controller.

ask: the one that led last --2007, no answer--> the next one --...--> NoControllerError
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ha.core.elected_copies import Proposal
from ha.core.replica_role import GroupDecision
from ha.elected.files import IdentityFiles, ReplicaIdentity
from ha.errors import HaError, HaProtocolError
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import ConnectError, RemotingError
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause
from ledgermq.wall_clock import wall_clock_ms

_LIMIT_S: Final = 1.0
_PAUSE_S: Final = 0.3
_DECIDED_AGAINST: Final = frozenset(
    cause.code
    for cause in (
        *(Cause.CONTROLLER_FENCED_MASTER_EPOCH, Cause.CONTROLLER_FENCED_SET_EPOCH, Cause.CONTROLLER_INVALID_MASTER),
        *(Cause.CONTROLLER_INVALID_REPLICAS, Cause.CONTROLLER_BROKER_NOT_ALIVE, Cause.CONTROLLER_ALTER_FAILED),
    )
)
"""Codes of the controllers' state machine, which say that the request was not and will not be carried out."""

_log = RateLimitedLog(logging.getLogger(__name__))


class NoControllerError(HaError):
    """No reachable controller leads."""


class ControllerAnswer(NamedTuple):
    """An answer. `is_alone`: no earlier attempt can have been carried out, too."""

    command: Command
    is_alone: bool


class ProposalResult(NamedTuple):
    """Result of a proposal: the decided set with its epoch; None: refused, or unknown if not `is_certain`."""

    ids: frozenset[int] | None
    set_epoch: int
    is_certain: bool


class Controllers:
    """The controllers of a cluster.

    Args:
        addresses: `host:port` of each.
        client: makes and signs the connections; not owned.
        cluster, name: brokerClusterName and brokerName of this broker.
    """

    def __init__(self, addresses: Sequence[str], client: RemotingClient, cluster: str, name: str) -> None:
        self.addresses = list(addresses)
        self._client = client
        self._who = {"clusterName": cluster, "brokerName": name}
        self._leading = self.addresses[0]

    async def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> ControllerAnswer:
        """Return the leading controller's answer, whatever its code.

        Raises:
            NoControllerError: no leading controller answers.
        """
        ext = self._who | {name: str(value) for name, value in (fields or {}).items()}
        is_alone, trouble = True, ""
        for address in sorted(self.addresses, key=lambda one: one != self._leading):
            try:
                answer = await self._client.request(address, Command(code, ext=dict(ext), body=body), _LIMIT_S)
            except RemotingError as error:
                is_alone = is_alone and isinstance(error, ConnectError)
                trouble = str(error)
                continue
            if answer.code != Cause.CONTROLLER_NOT_LEADER.code:
                self._leading = address
                return ControllerAnswer(answer, is_alone)
            is_alone = False  # it may have led until now, and its proposals may have been agreed to
            trouble = f"{address} does not lead"
        raise NoControllerError(f"no controller leads, the last one asked: {trouble}")

    async def enrol(self, files: IdentityFiles, address: str) -> ReplicaIdentity:
        """Return this broker's identity, from its file, or a new one that is requested until the controllers give it.

        Args:
            files: store the identity, and the requested one.
            address: `host:port` at which this broker serves clients.

        Raises:
            EpochFileError: a file is damaged.
            HaError: the file belongs to another broker name or cluster.
            StoreError, OSError: the disk refused.
        """
        who = self._who["clusterName"], self._who["brokerName"]
        known = files.identity()
        if known is not None:
            if known[:2] != who:
                raise HaError(f"this store belongs to broker {known.name} of cluster {known.cluster}")
            return known
        candidate = files.candidate()
        while True:
            try:
                if candidate is None or candidate[:2] != who:
                    candidate = await self._next_identity(address)
                    files.ask(candidate)
                fields = {"appliedBrokerId": candidate.broker_id, "registerCheckCode": candidate.check_code}
                answer = (await self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields)).command
                if answer.code == ResponseCode.SUCCESS:
                    files.confirm(candidate)
                    return candidate
                _log.warning("the controllers do not give id %d: %s", candidate.broker_id, answer.remark)
                if answer.code == Cause.CONTROLLER_ID_INVALID.code:
                    candidate = None
            except (NoControllerError, HaProtocolError) as error:
                _log.warning("this broker has no id yet: %s", error)
            await asyncio.sleep(_PAUSE_S)

    async def _next_identity(self, address: str) -> ReplicaIdentity:
        answer = _accepted((await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)).command)
        broker_id = _whole(answer.ext.get("nextBrokerId"))
        check_code = f"{address};{wall_clock_ms()}"
        return ReplicaIdentity(self._who["clusterName"], self._who["brokerName"], broker_id, check_code)

    async def register(self, broker_id: int, address: str) -> None:
        """Register the address at which this broker serves clients.

        Raises:
            NoControllerError, HaProtocolError: the controllers do not accept it.
        """
        fields = {"brokerId": broker_id, "brokerAddress": address}
        _accepted((await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, fields)).command)

    async def decided(self) -> GroupDecision:
        """Ask for the decision about this broker name. Raises `NoControllerError`, `HaProtocolError`."""
        answer = _accepted((await self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)).command)
        ids, set_epoch = _set_of(answer)
        ext = answer.ext
        return GroupDecision(
            master_id=_whole(ext["masterBrokerId"]) if "masterBrokerId" in ext else None,
            master_address=ext.get("masterAddress", ""),
            ha_address=ext.get("haServerAddr", ""),
            master_epoch=_whole(ext.get("masterEpoch")),
            ids=ids,
            set_epoch=set_epoch,
        )

    async def elect(self, broker_id: int, *, is_new_process: bool) -> int:
        """Ask for an election; return the epoch of the master.

        Raises:
            NoControllerError: no controller answers.
            HaProtocolError: nobody was elected, or the answer does not tell the epoch.
        """
        fields = {"brokerId": broker_id, "designateElect": "false", "newProcess": str(is_new_process).lower()}
        answer = _accepted((await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)).command)
        return _whole(answer.ext.get("masterEpoch"))

    async def hand_over(self, epoch: int, successor: int) -> None:
        """Ask for the election of this member of the in-sync set: the master of `epoch` resigned. Raises as `elect`."""
        fields = {"brokerId": successor, "designateElect": "true", "resignedEpoch": epoch}
        _accepted((await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)).command)

    async def propose(self, broker_id: int, master_epoch: int, proposal: Proposal) -> ProposalResult:
        """Ask for another in-sync set; does not raise."""
        fields = {"masterBrokerId": broker_id, "masterEpoch": master_epoch, "renew": str(proposal.renews).lower()}
        body = json.dumps({"syncStateSet": sorted(proposal.ids), "syncStateSetEpoch": proposal.set_epoch}).encode()
        try:
            answer, is_alone = await self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)
            if answer.code == ResponseCode.SUCCESS:
                return ProposalResult(*_set_of(answer), is_certain=True)
        except (NoControllerError, HaProtocolError) as error:
            _log.warning("the in-sync set %s is not decided: %s", sorted(proposal.ids), error)
            return ProposalResult(None, 0, is_certain=False)
        _log.warning("the in-sync set %s is refused: %s", sorted(proposal.ids), answer.remark)
        return ProposalResult(None, 0, is_certain=is_alone and answer.code in _DECIDED_AGAINST)

    async def leave(self) -> None:
        """Close the connections, after which each controller counts this broker as dead; stop asking."""
        await self._client.close()

    async def beat(self, address: str, fields: Mapping[str, object]) -> Mapping[str, str] | None:
        """Send a heartbeat to one controller; return the fields of its answer, None without a good answer."""
        ext = self._who | {name: str(value) for name, value in fields.items()}
        try:
            answer = await self._client.request(address, Command(RequestCode.BROKER_HEARTBEAT, ext=ext), _LIMIT_S)
        except RemotingError as error:
            _log.warning("a heartbeat does not reach the controller at %s: %s", address, error)
            return None
        if answer.code != ResponseCode.SUCCESS:
            _log.warning("the controller at %s refuses a heartbeat: %s", address, answer.remark)
            return None
        return answer.ext


def _accepted(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise HaProtocolError(f"the controllers answer {answer.code}: {answer.remark}")
    return answer


def _whole(text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise HaProtocolError(f"the controllers answer {str(text)[:80]!r} where a number belongs")
    return int(text)


def _set_of(answer: Command) -> tuple[frozenset[int], int]:
    try:
        parsed: Any = json.loads(bytes(answer.body))
        ids, set_epoch = parsed["syncStateSet"] or [], parsed["syncStateSetEpoch"]
    except (ValueError, KeyError, TypeError) as error:
        raise HaProtocolError(f"the controllers answer no in-sync set: {error!r}") from error
    if not isinstance(ids, list) or not all(type(one) is int for one in [*ids, set_epoch]):
        raise HaProtocolError(f"the controllers answer the in-sync set {str(parsed)[:200]}")
    return frozenset(ids), set_epoch
