"""Bodies of registrations (103): all topics and their version, or those that changed.

A broker may have many thousands of topics and registers whenever one changes, so each topic's JSON is cached. The body
with all of them is kept, too: it goes to each nameserver, again and again to one that does not answer.

Source: apache/rocketmq `remoting/.../protocol/body/RegisterBrokerBody.java` (5.3).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from broker.state.settings import TopicConfig
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.route import PERM_READ_WRITE
from store.time_slice import TimeSlice

_SLICE_S: Final = 0.002


class RegistrationBodies:
    """Makes the bodies of registrations.

    Args:
        permission: returns the permission bits of the whole broker. Topics are sent with no more than these.
    """

    def __init__(self, permission: Callable[[], int]) -> None:
        self._permission = permission
        self._entries: dict[str, tuple[TopicConfig, int, bytes]] = {}
        self._encoding = asyncio.Lock()
        self._whole: tuple[Mapping[str, TopicConfig], tuple[DataVersion, int], bytes] | None = None

    async def whole(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        """Return the body with all topics. The loop has its turns meanwhile, since there may be many."""
        async with self._encoding:
            allowed = self._permission()
            stamp = version, allowed
            if self._whole is not None and self._whole[1] == stamp and self._whole[0] == topics:
                return self._whole[2]
            topics = dict(topics)
            entries, time_slice = [], TimeSlice(_SLICE_S)
            for topic in topics.values():
                entries.append(self._entry(topic, allowed))
                await time_slice.give_way()
            if len(self._entries) > len(topics):
                self._entries = {name: entry for name, entry in self._entries.items() if name in topics}
            body = _body(entries, version)
            self._whole = topics, stamp, body
            return body

    def of_changed(self, topics: Mapping[str, TopicConfig], changed: Iterable[str], version: DataVersion) -> bytes:
        """Return the body with these topics, all of which exist; there may be none."""
        allowed = self._permission()
        return _body([self._entry(topics[name], allowed) for name in changed], version)

    def _entry(self, topic: TopicConfig, allowed: int) -> bytes:
        known = self._entries.get(topic.name)
        if known is not None and known[0] is topic and known[1] == allowed:
            return known[2]
        is_limited = allowed & PERM_READ_WRITE != PERM_READ_WRITE
        shown = replace(topic, perm=topic.perm & allowed) if is_limited else topic
        entry = dumps(topic.name) + b":" + dumps(shown.to_json())
        self._entries[topic.name] = (topic, allowed, entry)
        return entry


def _body(entries: Iterable[bytes], version: DataVersion) -> bytes:
    mapping_version = DataVersion(state_version=version.state_version).to_json()
    return (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":%b,"mappingDataVersion":%b,'
        b'"topicConfigTable":{%b},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
    ) % (dumps(version.to_json()), dumps(mapping_version), b",".join(entries))
