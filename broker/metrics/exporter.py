"""What rocketmq-exporter would say of this broker, as far as one broker knows it.

Names, labels and help are the exporter's, so that dashboards made for it work without it. What it asks clients or other
brokers for is not here: docs/metrics.md.

Source: apache/rocketmq-exporter `collector/RMQMetricsCollector.java`, `task/MetricsCollectTask.java`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final

from broker.config import BrokerConfig
from broker.counting.statistics import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SEND_BACK_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from broker.groups.clients import BROADCASTING
from broker.parts import Parts
from broker.state import names
from broker.state.settings import TopicConfig
from telemetry.families import Collector, Family, Labels, Row

_DIFFS: Final = {
    "": ("rocketmq_group_diff", "GroupDiff"),
    names.RETRY_PREFIX: ("rocketmq_group_retrydiff", "GroupRetryDiff"),
    names.DEAD_LETTER_PREFIX: ("rocketmq_group_dlqdiff", "GroupDLQDiff"),
}
"""Name and help of what is not consumed, by the beginning of the topic's name."""

_BY_TOPIC: Final = (
    ("rocketmq_producer_tps", "TopicPutNums", TOPIC_PUT_NUMS),
    ("rocketmq_producer_message_size", "TopicPutMessageSize", TOPIC_PUT_SIZE),
)
_BY_GROUP: Final = (
    ("rocketmq_consumer_tps", "GroupGetNums", GROUP_GET_NUMS),
    ("rocketmq_consumer_message_size", "GroupGetMessageSize", GROUP_GET_SIZE),
)


class ExporterSeries:
    """Collects it.

    Args:
        address: `host:port` of this broker as clients dial it.
        clock_ms: wall clock.
    """

    def __init__(self, config: BrokerConfig, parts: Parts, address: str, clock_ms: Callable[[], int]) -> None:
        self._parts = parts
        self._statistics = parts.context.counting.statistics
        self._address = address
        self._clock_ms = clock_ms
        self._cluster = config.cluster_name
        self._place: Labels = (("cluster", config.cluster_name), ("broker", config.broker_name))
        self._broker_name = config.broker_name

    def collect(self) -> Collector:
        """All families."""
        yield from self._broker()
        yield from self._topics()
        yield from self._rates()
        yield from self._groups()
        yield from self._members()

    def _broker(self) -> Iterator[Family]:
        labels = (("cluster", self._cluster), ("brokerIP", self._address), ("broker", self._broker_name))
        for name, explanation, counter in (
            ("rocketmq_broker_tps", "BrokerPutNums", BROKER_PUT_NUMS),
            ("rocketmq_broker_qps", "BrokerGetNums", BROKER_GET_NUMS),
        ):
            yield _gauge(name, explanation, [(labels, self._statistics.rate(counter, self._cluster))])

    def _topics(self) -> Iterator[Family]:
        topics = self._parts.context.metadata.topics()
        yield _gauge("rocketmq_producer_offset", "TopicOffset", self._ends(topics, ""))
        yield _gauge("rocketmq_topic_retry_offset", "TopicRetryOffset", self._ends(topics, names.RETRY_PREFIX))
        yield _gauge("rocketmq_topic_dlq_offset", "TopicRetryOffset", self._ends(topics, names.DEAD_LETTER_PREFIX))

    def _ends(self, topics: Mapping[str, TopicConfig], prefix: str) -> Iterator[Row | None]:
        """Sums of the ends of queues, of topics of one kind."""
        label = "group" if prefix == names.DEAD_LETTER_PREFIX else "topic"
        for name, topic in topics.items():
            if _prefix_of(name) != prefix:
                yield None
                continue
            end = 0
            for queue_id in range(max(topic.read_queues, topic.write_queues)):
                queue = self._parts.context.store.queues.find(name, queue_id)
                end += queue.max_offset if queue is not None else 0
                yield None
            yield (*self._place, (label, name.removeprefix(names.DEAD_LETTER_PREFIX))), end

    def _rates(self) -> Iterator[Family]:
        statistics = self._statistics
        for name, explanation, counter in _BY_TOPIC:
            yield _gauge(name, explanation, self._topic_rates(counter))
        for name, explanation, counter in _BY_GROUP:
            rates = ((self._of_group(key), statistics.rate(counter, key)) for key in statistics.keys(counter))
            yield _gauge(name, explanation, rates)
        sums = (
            (self._of_group(key), statistics.minute_sum(SEND_BACK_NUMS, key)) for key in statistics.keys(SEND_BACK_NUMS)
        )
        yield _gauge("rocketmq_send_back_nums", "SendBackNums", sums)

    def _topic_rates(self, counter: str) -> Iterator[Row]:
        for topic in self._statistics.keys(counter):
            yield (*self._place, ("topic", topic)), self._statistics.rate(counter, topic)

    def _of_group(self, key: str) -> Labels:
        topic, _, group = key.partition("@")
        return (*self._place, ("topic", topic), ("group", group))

    def _groups(self) -> Collector:
        # By columns: of many places there is no object for each that the garbage collector would have to walk.
        places: list[str] = []
        behind: list[int] = []
        late: list[int] = []
        offsets: list[int] = []
        for key in self._parts.context.offsets.places():
            topic, _, group = key.partition("@")
            if self._parts.context.metadata.topic(topic) is None or names.is_internal_topic(topic):
                yield None
                continue
            by_queue = self._parts.context.offsets.queues(topic, group)
            messages, late_ms = yield from self._behind(topic, by_queue)
            places.append(key)
            behind.append(messages)
            late.append(late_ms)
            offsets.append(sum(by_queue.values()))
        for prefix, (name, explanation) in _DIFFS.items():
            yield _gauge(name, explanation, self._diffs(places, behind, prefix))
        labels = self._of_group
        yield _gauge(
            "rocketmq_consumer_offset", "GroupBrokerTotalOffset", zip(map(labels, places), offsets, strict=True)
        )
        ages = zip(map(labels, places), late, strict=True)
        yield _gauge("rocketmq_group_get_latency_by_storetime", "GroupGetLatencyByStoreTime", ages)

    def _diffs(self, places: list[str], behind: list[int], prefix: str) -> Iterator[Row | None]:
        for key, messages in zip(places, behind, strict=True):
            topic, _, group = key.partition("@")
            yield (self._diff_labels(topic, group), messages) if _prefix_of(topic) == prefix else None

    def _behind(self, topic: str, by_queue: Mapping[int, int]) -> Generator[None, None, tuple[int, int]]:
        """Messages not consumed, and the age of the oldest of them in ms; a step for each queue."""
        behind = oldest_ms = 0
        for queue_id, offset in by_queue.items():
            queue = self._parts.context.store.queues.find(topic, queue_id)
            if queue is not None and queue.max_offset > offset:
                behind += queue.max_offset - offset
                stored_ms = self._parts.context.store.store_time(queue, max(offset, queue.min_offset))
                oldest_ms = min(oldest_ms or stored_ms, stored_ms) if stored_ms > 0 else oldest_ms
            yield None
        return behind, max(0, self._clock_ms() - oldest_ms) if oldest_ms else 0

    def _diff_labels(self, topic: str, group: str) -> Labels:
        online = self._parts.groups.clients.consumer_group(group)
        model = "0" if online is not None and online.message_model == BROADCASTING else "1"
        count = len(online.members) if online is not None else 0
        return (("group", group), ("topic", topic), ("countOfOnlineConsumers", str(count)), ("msgModel", model))

    def _members(self) -> Collector:
        groups: dict[str, None] = {}
        for key in self._parts.context.offsets.places():
            groups[key.partition("@")[2]] = None
            yield None
        yield _gauge("rocketmq_group_count", "GroupCount", map(self._members_of, groups))
        producers = self._parts.groups.clients.all_producers().items()
        rows = (((*self._place, ("group", group)), len(members)) for group, members in producers)
        yield _gauge("rocketmq_producer_count", "producer instance counter", rows)

    def _members_of(self, name: str) -> Row:
        group = self._parts.groups.clients.consumer_group(name)
        members = list(group.members.values()) if group is not None else []
        labels = (
            ("caddr", ",".join(member.connection.address for member in members)),
            ("localaddr", ",".join(member.client_id for member in members)),
            ("group", name),
        )
        return labels, len(members)


def _prefix_of(topic: str) -> str:
    """Which of `_DIFFS` a topic belongs to."""
    return next((prefix for prefix in (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX) if topic.startswith(prefix)), "")


def _gauge(name: str, explanation: str, rows: Iterable[Row | None]) -> Family:
    return Family(name, "gauge", explanation, rows)
