"""What rocketmq-exporter would say of this broker, as far as one broker knows it.

Names, labels and help are the exporter's, so that dashboards made for it work without it. What it asks clients or other
brokers for is not here: docs/metrics.md.

Source: apache/rocketmq-exporter `collector/RMQMetricsCollector.java`, `task/MetricsCollectTask.java`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from broker import names
from broker.clients import BROADCASTING
from broker.config import BrokerConfig
from broker.parts import Parts
from broker.statistics import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SEND_BACK_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from ledgermq.telemetry.families import Collector, Family, Labels, Row

_STEP: Final = 200
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
        self._statistics = parts.statistics
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

    def _topics(self) -> Collector:
        ends: defaultdict[str, int] = defaultdict(int)
        for number, ((topic, _), queue) in enumerate(list(self._parts.store.queues.by_key.items())):
            if isinstance(topic, str):
                ends[topic] += queue.max_offset
            if number % _STEP == 0:
                yield None
        plain: list[Row] = []
        retries: list[Row] = []
        dead: list[Row] = []
        for number, topic in enumerate(self._parts.metadata.topics()):
            end = ends[topic]
            if topic.startswith(names.RETRY_PREFIX):
                retries.append(((*self._place, ("topic", topic)), end))
            elif topic.startswith(names.DEAD_LETTER_PREFIX):
                dead.append(((*self._place, ("group", topic.removeprefix(names.DEAD_LETTER_PREFIX))), end))
            else:
                plain.append(((*self._place, ("topic", topic)), end))
            if number % _STEP == 0:
                yield None
        yield _gauge("rocketmq_producer_offset", "TopicOffset", plain)
        yield _gauge("rocketmq_topic_retry_offset", "TopicRetryOffset", retries)
        yield _gauge("rocketmq_topic_dlq_offset", "TopicRetryOffset", dead)

    def _rates(self) -> Collector:
        for name, explanation, counter in (
            ("rocketmq_producer_tps", "TopicPutNums", TOPIC_PUT_NUMS),
            ("rocketmq_producer_message_size", "TopicPutMessageSize", TOPIC_PUT_SIZE),
        ):
            rows: list[Row] = []
            for topic in self._statistics.keys(counter):
                rows.append(((*self._place, ("topic", topic)), self._statistics.rate(counter, topic)))
                yield None
            yield _gauge(name, explanation, rows)
        for name, explanation, counter in _BY_GROUP:
            rows = []
            for key in self._statistics.keys(counter):
                rows.append((self._of_group(key), self._statistics.rate(counter, key)))
                yield None
            yield _gauge(name, explanation, rows)
        rows = []
        for key in self._statistics.keys(SEND_BACK_NUMS):
            rows.append((self._of_group(key), self._statistics.minute_sum(SEND_BACK_NUMS, key)))
            yield None
        yield _gauge("rocketmq_send_back_nums", "SendBackNums", rows)

    def _of_group(self, key: str) -> Labels:
        topic, _, group = key.partition("@")
        return (*self._place, ("topic", topic), ("group", group))

    def _groups(self) -> Collector:
        diffs: dict[str, list[Row]] = {"diff": [], "retrydiff": [], "dlqdiff": []}
        offsets: list[Row] = []
        late: list[Row] = []
        for key in self._parts.offsets.places():
            topic, _, group = key.partition("@")
            if self._parts.metadata.topic(topic) is None or names.is_internal_topic(topic):
                continue
            by_queue = self._parts.offsets.queues(topic, group)
            behind, late_ms = self._behind(topic, by_queue)
            labels = self._of_group(key)
            offsets.append((labels, sum(by_queue.values())))
            late.append((labels, late_ms))
            diffs[_diff_of(topic)].append((self._diff_labels(topic, group), behind))
            yield None
        yield _gauge("rocketmq_group_diff", "GroupDiff", diffs["diff"])
        yield _gauge("rocketmq_group_retrydiff", "GroupRetryDiff", diffs["retrydiff"])
        yield _gauge("rocketmq_group_dlqdiff", "GroupDLQDiff", diffs["dlqdiff"])
        yield _gauge("rocketmq_consumer_offset", "GroupBrokerTotalOffset", offsets)
        yield _gauge("rocketmq_group_get_latency_by_storetime", "GroupGetLatencyByStoreTime", late)

    def _behind(self, topic: str, by_queue: dict[int, int]) -> tuple[int, int]:
        """Messages not consumed, and the age of the oldest of them in ms."""
        behind = late_ms = 0
        for queue_id, offset in by_queue.items():
            queue = self._parts.store.queues.find(topic, queue_id)
            if queue is not None and queue.max_offset > offset:
                behind += queue.max_offset - offset
                stored_ms = self._parts.store.store_time(queue, max(offset, queue.min_offset))
                late_ms = max(late_ms, self._clock_ms() - stored_ms if stored_ms > 0 else 0)
        return behind, late_ms

    def _diff_labels(self, topic: str, group: str) -> Labels:
        online = self._parts.clients.consumer_group(group)
        model = "0" if online is not None and online.message_model == BROADCASTING else "1"
        count = len(online.members) if online is not None else 0
        return (("group", group), ("topic", topic), ("countOfOnlineConsumers", str(count)), ("msgModel", model))

    def _members(self) -> Collector:
        rows: list[Row] = []
        groups: dict[str, None] = {}
        for key in self._parts.offsets.places():
            groups[key.partition("@")[2]] = None
            yield None
        for name in groups:
            group = self._parts.clients.consumer_group(name)
            members = list(group.members.values()) if group is not None else []
            labels = (
                ("caddr", ",".join(member.connection.address for member in members)),
                ("localaddr", ",".join(member.client_id for member in members)),
                ("group", name),
            )
            rows.append((labels, len(members)))
            yield None
        yield _gauge("rocketmq_group_count", "GroupCount", rows)
        producers = self._parts.clients.all_producers().items()
        rows = [((*self._place, ("group", group)), len(members)) for group, members in producers]
        yield _gauge("rocketmq_producer_count", "producer instance counter", rows)


def _diff_of(topic: str) -> str:
    if topic.startswith(names.RETRY_PREFIX):
        return "retrydiff"
    return "dlqdiff" if topic.startswith(names.DEAD_LETTER_PREFIX) else "diff"


def _gauge(name: str, explanation: str, rows: list[Row]) -> Family:
    return Family(name, "gauge", explanation, rows)
