"""Requests of brokers and tools to a controller: 904 and 1001 to 1013.

Each controller answers heartbeats and questions about the controllers. The leading one alone answers all other
requests; the others answer 2007, after which the caller finds the leader by 1005.

Source: apache/rocketmq `controller/.../processor/ControllerRequestProcessor.java`, `impl/DLedgerController.java` (5.3).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ha.controller.answers import election_body, master_fields, replicas_body, set_body
from ha.controller.config import ControllerConfig
from ha.controller.core.commands import AlterSet, Confirm, GrantId, Register
from ha.controller.core.live import PRIORITY, SILENCE_MS, LiveBrokers, ReplicaHeartbeat
from ha.controller.core.machine import ControllerMachine
from ha.controller.core.model import FIRST_ID, REPLICAS_MAX, Group
from ha.controller.core.outcome import CommandOutcome
from ha.controller.leadership import ControllerLeadership
from ha.controller.quorum.quorum import Quorum
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import boolean, filled, integer, long
from ledgermq.remoting.codec.lenient_json import json_body, request_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.answer import Answer
from ledgermq.remoting.serving.live_settings import LiveSettings

Quick = Callable[[Connection, Command], Answer]
Slow = Callable[[Connection, Command], Awaitable[Answer]]

GUARDED: Final = frozenset(
    {
        *(RequestCode.BROKER_HEARTBEAT, RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_APPLY_BROKER_ID),
        *(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_ELECT_MASTER),
        *(RequestCode.CLEAN_BROKER_DATA, RequestCode.UPDATE_CONTROLLER_CONFIG),
    }
)
"""Requests that change something; a broker's heartbeats keep it alive and are among them."""

_NAME_MAX: Final = 255
_ADDRESS_MAX: Final = 512
_NAMES_MAX: Final = 4096


class ControllerRequests:
    """The handlers.

    Args:
        now_ms: a clock that stands still while this process does not run.
    """

    def __init__(
        self,
        quorum: Quorum,
        machine: ControllerMachine,
        live: LiveBrokers,
        leadership: ControllerLeadership,
        settings: LiveSettings[ControllerConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self._quorum = quorum
        self._machine = machine
        self._live = live
        self._leadership = leadership
        self._settings = settings
        self._now_ms = now_ms

    @property
    def quick(self) -> Mapping[int, Quick]:
        """Handlers that every controller answers at once, by request code."""
        return {
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self._settings.change,
            RequestCode.GET_CONTROLLER_CONFIG: self._settings.show,
        }

    @property
    def slow(self) -> Mapping[int, Slow]:
        """Handlers of the leading controller, which may wait for the others, by request code."""
        return {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self._clean,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_id,
        }

    # ---- every controller

    def _heartbeat(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        if not ext.get("brokerId"):
            raise Refusal(Cause.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        beat = ReplicaHeartbeat(
            name=_name(ext, "brokerName"),
            broker_id=long(ext, "brokerId", low=FIRST_ID),
            address=_bounded(ext, "brokerAddr", _ADDRESS_MAX),
            silence_ms=long(ext, "heartbeatTimeoutMills", SILENCE_MS, low=1),
            epoch=integer(ext, "epoch", -1),
            end_offset=long(ext, "maxOffset", -1),
            confirm_offset=long(ext, "confirmOffset", -1),
            priority=integer(ext, "electionPriority", PRIORITY),
            holds_lease=boolean(ext, "holdsLease"),
            ha_address=ext.get("haServerAddr", "")[:_ADDRESS_MAX],
            doubt_epoch=integer(ext, "doubtEpoch") if "doubtEpoch" in ext else None,
            is_full=boolean(ext, "withoutRoom"),
        )
        self._check_lives_once(connection, beat.name, beat.broker_id, beat.address)
        if not self._live.hear(beat, self._now_ms(), connection):
            raise Refusal(Cause.BUSY, f"{len(self._live)} brokers are alive, no more are taken")
        granted_s = self._leadership.heard(beat)
        return Answer(self._heartbeat_fields(beat, granted_s), remark="Heart beat success")

    def _heartbeat_fields(self, beat: ReplicaHeartbeat, granted_s: float) -> dict[str, str] | None:
        """Return fields for a LedgerMQ broker: its lease in ms, the epochs known here, the wanted successor.

        A master also learns which brokers of its name have no room for messages. A broker asks for the decision if an
        epoch is new to it. The lease is for the master of this epoch.
        """
        group = self._machine.groups.get(beat.name)
        if not beat.holds_lease or group is None:
            return None
        fields = {"masterEpoch": str(group.master_epoch), "syncStateSetEpoch": str(group.set_epoch)}
        if (successor := self._leadership.successor(beat.name, beat.broker_id)) is not None:
            fields["successor"] = str(successor)
        if granted_s and (full := self._live.full(beat.name, group.replicas, self._now_ms())):
            fields["withoutRoom"] = ",".join(map(str, full))
        return fields | ({"lease": str(round(granted_s * 1000))} if granted_s else {})

    def _metadata(self, connection: Connection, command: Command) -> Answer:
        config, status = self._settings.config, self._quorum.status
        fields = {
            "group": config.group,
            "isLeader": str(status.is_leader).lower(),
            "peers": "".join(f"{member}:{address};" for member, address in config.peers.items()),
        }
        if status.leader_id is not None:
            fields["controllerLeaderId"] = status.leader_id
            fields["controllerLeaderAddress"] = config.peers[status.leader_id]
        return Answer(fields)

    # ---- the leading controller

    async def _alter(self, connection: Connection, command: Command) -> Answer:
        ext, name = command.ext, _name(command.ext, "brokerName")
        body = json_body(command.body, "the in-sync set")
        set_epoch = _whole(body.get("syncStateSetEpoch"))
        alter = AlterSet(
            name=name,
            master_id=long(ext, "masterBrokerId"),
            master_epoch=integer(ext, "masterEpoch"),
            set_epoch=set_epoch,
            wanted=_ids(body.get("syncStateSet")),
            alive=self._alive(name) | self._members(name, set_epoch),
            renew=boolean(ext, "renew"),
        )
        group = _accepted(await self._quorum.submit(alter))
        return Answer({"newSyncStateSetEpoch": str(group.set_epoch)}, set_body(group))

    async def _elect(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        name, designated, asker = _name(ext, "brokerName"), boolean(ext, "designateElect"), long(ext, "brokerId")
        resigned_epoch = integer(ext, "resignedEpoch") if "resignedEpoch" in ext else None
        group, outcome = self._machine.groups.get(name), None
        # only the master itself can give up its lease
        is_by_master = group is not None and self._live.speaks_on(connection, name, group.master_id)
        if designated and resigned_epoch is None:
            outcome = await self._leadership.hand_over(name, asker)
        if outcome is None:
            outcome = await self._leadership.elect(
                name,
                asker,
                designated=designated,
                seen_epoch=resigned_epoch,
                new_process=boolean(ext, "newProcess"),
                has_resigned=resigned_epoch is not None and is_by_master,
            )
        if outcome.cause is Cause.CONTROLLER_MASTER_STILL_EXISTS and outcome.group is not None:
            fields, body = master_fields(outcome.group), election_body(outcome.group, is_new=False)
            return Answer(fields, body, outcome.cause.code, outcome.remark)
        group = _accepted(outcome)
        return Answer(master_fields(group), election_body(group, is_new=True))

    async def _register(self, connection: Connection, command: Command) -> Answer:
        ext, name = command.ext, _name(command.ext, "brokerName")
        address, broker_id = _bounded(ext, "brokerAddress", _ADDRESS_MAX), long(ext, "brokerId")
        self._check_lives_once(connection, name, broker_id, address)
        register = Register(name=name, broker_id=broker_id, address=address)
        group = _accepted(await self._quorum.submit(register))
        fields = {"clusterName": filled(ext, "clusterName"), "brokerName": name}
        if self._live.is_alive(name, group.master_id, self._now_ms()):
            fields |= master_fields(group)
        return Answer(fields, set_body(group))

    def _check_lives_once(self, connection: Connection, name: str, broker_id: int, address: str) -> None:
        """Refuse a broker while another process has its id; on one connection its address may change."""
        other = self._live.last(name, broker_id)
        if other is None or other.address == address or self._live.speaks_on(connection, name, broker_id):
            return
        if self._live.is_alive(name, broker_id, self._now_ms()):
            remark = f"broker {broker_id} of {name} lives at {other.address}: is its store used twice, from a copy?"
            raise Refusal(Cause.CONTROLLER_ID_INVALID, remark)

    async def _replica_info(self, connection: Connection, command: Command) -> Answer:
        await self._read()
        group = self._machine.groups.get(_name(command.ext, "brokerName"))
        if group is None:
            raise Refusal(Cause.CONTROLLER_METADATA_NOT_EXIST, "Broker metadata is not existed")
        fields = master_fields(group, with_set_epoch=False)
        beat = None if group.master_id is None else self._live.last(group.name, group.master_id)
        if beat is not None and beat.ha_address:
            fields["haServerAddr"] = beat.ha_address  # RocketMQ's brokers get it from a nameserver
        return Answer(fields, set_body(group))

    async def _sync_state_data(self, connection: Connection, command: Command) -> Answer:
        await self._read()
        names = request_json(command)
        if not isinstance(names, list) or not names or len(names) > _NAMES_MAX:
            raise Refusal(Cause.MALFORMED_FIELD, f"the body is not a list of 1 to {_NAMES_MAX} broker names")
        groups = [group for name in names if (group := self._machine.groups.get(str(name))) is not None]
        now_ms = self._now_ms()
        return Answer(body=replicas_body(groups, lambda name, one: self._live.is_alive(name, one, now_ms)))

    async def _clean(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        even_living = boolean(ext, "isCleanLivingBroker") or boolean(ext, "cleanLivingBroker")
        ids = _listed_ids(ext.get("brokerControllerIdsToClean", ""))
        outcome = await self._leadership.clean(_name(ext, "brokerName"), ids, even_living=even_living)
        if outcome.cause is not None:
            raise Refusal(outcome.cause, outcome.remark)
        return Answer()

    async def _next_id(self, connection: Connection, command: Command) -> Answer:
        await self._read()
        name = _name(command.ext, "brokerName")
        group = self._machine.groups.get(name)
        next_id = FIRST_ID if group is None else group.next_id
        cluster = filled(command.ext, "clusterName")
        return Answer({"clusterName": cluster, "brokerName": name, "nextBrokerId": str(next_id)})

    async def _apply_id(self, connection: Connection, command: Command) -> Answer:
        ext, name, cluster = command.ext, _name(command.ext, "brokerName"), _name(command.ext, "clusterName")
        code = _bounded(ext, "registerCheckCode", _ADDRESS_MAX)
        grant = GrantId(name=name, cluster=cluster, broker_id=long(ext, "appliedBrokerId"), check_code=code)
        _accepted(await self._quorum.submit(grant))
        return Answer({"clusterName": cluster, "brokerName": name})

    async def _read(self) -> None:
        if self._settings.config.reads_by_log:
            await self._quorum.submit(Confirm())

    def _members(self, name: str, set_epoch: int) -> frozenset[int]:
        """Return the members of the set of this epoch; nobody if another one is known.

        They may stay while they are silent, since they have everything acknowledged all the same: a master that loses
        one slave while another one does not reach the controllers must be able to go on without the lost one.
        """
        group = self._machine.groups.get(name)
        return group.in_sync if group is not None and group.set_epoch == set_epoch else frozenset()

    def _alive(self, name: str) -> frozenset[int]:
        group = self._machine.groups.get(name)
        return frozenset() if group is None else self._live.alive(name, group.replicas, self._now_ms())


def _accepted(outcome: CommandOutcome) -> Group:
    if outcome.cause is not None or outcome.group is None:
        raise Refusal(outcome.cause or Cause.SYSTEM_ERROR, outcome.remark)
    return outcome.group


def _name(ext: Mapping[str, str], field: str) -> str:
    return _bounded(ext, field, _NAME_MAX)


def _bounded(ext: Mapping[str, str], field: str, length_max: int) -> str:
    value = filled(ext, field)
    if len(value) > length_max:
        raise Refusal(Cause.MALFORMED_FIELD, f"field {field} has {len(value)} characters, at most {length_max}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refusal(Cause.MALFORMED_FIELD, f"syncStateSetEpoch is {str(value)[:100]!r}, not a number")
    return value


def _ids(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or not 0 < len(value) <= REPLICAS_MAX or not all(type(one) is int for one in value):
        raise Refusal(
            Cause.MALFORMED_FIELD, f"syncStateSet is {str(value)[:100]!r}, not 1 to {REPLICAS_MAX} broker ids"
        )
    return frozenset(value)


def _listed_ids(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(";") if word.strip()]
    if len(words) > REPLICAS_MAX or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        remark = f"brokerControllerIdsToClean is {text[:100]!r}, not ids divided by semicolons"
        raise Refusal(Cause.CONTROLLER_INVALID_CLEAN, remark)
    return frozenset(map(int, words))
