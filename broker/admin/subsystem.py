"""The subsystem of administration: topics, figures, cleaning, moved offsets, replicas, transfer of leadership."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from broker.admin.broker_requests import BrokerInfoRequests
from broker.admin.cleaning import CleaningRequests
from broker.admin.offset_moves import OffsetMoves
from broker.admin.registration import Announcement
from broker.admin.replica_requests import ReplicaRequests
from broker.admin.runtime_info import SAMPLE_SECONDS, RuntimeInfo, Totals
from broker.admin.topic_requests import TopicRequests
from broker.admin.transfer import TRANSFER_LEADERSHIP, TransferRequests
from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.pull.held_pulls import HeldPulls
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.route import PERM_READ_WRITE


class AdminSubsystem(Subsystem):
    """Serves administration tools.

    Args:
        totals: returns counts since the start.
        waiting_figures: returns the part of GET_BROKER_RUNTIME_INFO about timers and delay levels.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        held_pulls: HeldPulls,
        totals: Callable[[], Totals],
        waiting_figures: Callable[[], dict[str, str]],
    ) -> None:
        self._identity = context.identity
        self._metadata = context.metadata
        self._log = context.store.log
        self._forwarding = context.forwarding
        self.runtime = RuntimeInfo(context, totals, waiting_figures)
        self._topics = TopicRequests(context)
        self._broker = BrokerInfoRequests(context, self.runtime)
        self._cleaning = CleaningRequests(context)
        self._offset_moves = OffsetMoves(context, clients, held_pulls)
        self._replicas = ReplicaRequests(context)
        self._transfer = TransferRequests(context)

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        return {**self._of_topics(), **self._of_the_broker(), **self._of_replicas()}

    def _of_topics(self) -> Mapping[int, Serve]:
        code, topics = RequestCode, self._topics
        return {
            code.UPDATE_AND_CREATE_TOPIC: topics.update_topic,
            code.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_topics,
            code.DELETE_TOPIC_IN_BROKER: self._forwarding.by_leader(topics.delete_topic),
            code.GET_ALL_TOPIC_CONFIG: topics.all_topics,
            code.GET_TOPIC_CONFIG: topics.topic_config,
            code.GET_TOPIC_STATS_INFO: topics.topic_stats,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self._offset_moves.reset_offset,
            code.CLONE_GROUP_OFFSET: self._offset_moves.clone_offsets,
        }

    def _of_the_broker(self) -> Mapping[int, Serve]:
        code, broker, cleaning = RequestCode, self._broker, self._cleaning
        return {
            code.GET_BROKER_CONFIG: broker.broker_config,
            code.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
            code.VIEW_BROKER_STATS_DATA: broker.view_statistics,
            code.CLEAN_EXPIRED_CONSUMEQUEUE: cleaning.expired_queues,
            code.CLEAN_UNUSED_TOPIC: cleaning.unused_topics,
            code.DELETE_EXPIRED_COMMITLOG: cleaning.expired_log,
        }

    def _of_replicas(self) -> Mapping[int, Serve]:
        code, replicas = RequestCode, self._replicas
        return {
            code.GET_BROKER_HA_STATUS: replicas.status,
            code.GET_BROKER_EPOCH_CACHE: replicas.terms,
            code.RESET_MASTER_FLUSH_OFFSET: replicas.reset_master_flush_offset,
            code.EXPORT_ROCKSDB_CONFIG_TO_JSON: replicas.nothing_to_move,
            code.POP_ROLLBACK: replicas.nothing_to_move,
            TRANSFER_LEADERSHIP: self._transfer.transfer,
        }

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Sample the totals, from which rates are computed."""
        return ((SAMPLE_SECONDS, self.runtime.sample),)

    def describe(self) -> Announcement:
        """Return the state for nameservers: topics, with no more permission than the broker's, and version."""
        topics, version = self._metadata.topics(), self._topics.topic_version()
        allowed = self._identity.permission
        if withheld := PERM_READ_WRITE & ~allowed:
            topics = {name: replace(topic, perm=topic.perm & allowed) for name, topic in topics.items()}
            version = replace(version, counter=version.counter + withheld)
        return Announcement(topics, version, self._log.confirm_offset)
