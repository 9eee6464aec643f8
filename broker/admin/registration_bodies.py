"""Bodies of registrations (103): all topics and their version, or those that changed.

A broker may have many thousands of topics and registers whenever one changes, so each topic's JSON is cached.

Source: apache/rocketmq `remoting/.../protocol/body/RegisterBrokerBody.java` (5.3).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from broker.state.settings import PERM_READ_WRITE, DataVersion, TopicConfig
from ledgermq.remoting.codec.java_json import dumps, text_map


class RegistrationBodies:
    """Makes the bodies of registrations.

    Args:
        permission: returns the permission bits of the whole broker. Topics are sent with no more than these.
    """

    def __init__(self, permission: Callable[[], int]) -> None:
        self._permission = permission
        self._texts: dict[str, tuple[TopicConfig, int, bytes]] = {}

    def whole(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        """Return the body with all topics."""
        for gone in [name for name in self._texts if name not in topics]:
            del self._texts[gone]
        return self._body(topics.values(), version)

    def _body(self, topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
        table = text_map((topic.name, self._text(topic)) for topic in topics)
        mapping_version = DataVersion(state_version=version.state_version).to_json()
        return (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":%b,"mappingDataVersion":%b,'
            b'"topicConfigTable":%b,"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
        ) % (dumps(version.to_json()), dumps(mapping_version), table)

    def of_changed(self, topics: Mapping[str, TopicConfig], changed: Iterable[str], version: DataVersion) -> bytes:
        """Return the body with these topics, all of which exist; there may be none."""
        return self._body([topics[name] for name in changed], version)

    def _text(self, topic: TopicConfig) -> bytes:
        allowed = self._permission()
        known = self._texts.get(topic.name)
        if known is not None and known[0] is topic and known[1] == allowed:
            return known[2]
        is_limited = allowed & PERM_READ_WRITE != PERM_READ_WRITE
        text = dumps((replace(topic, perm=topic.perm & allowed) if is_limited else topic).to_json())
        self._texts[topic.name] = (topic, allowed, text)
        return text
