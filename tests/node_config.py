"""Configurations of brokers for tests, with a few values of their own."""

import dataclasses
from typing import Any

from broker.config import BrokerConfig
from ledgermq.remoting.config_key import build, keys_of
from node.node_config import NodeConfig

_BY_FIELD = {key.path[0]: name for name, key in keys_of(BrokerConfig).items() if len(key.path) == 1}
_WITHOUT_KEY = {field.name for field in dataclasses.fields(BrokerConfig)} - {*_BY_FIELD}


def node_config(**values: Any) -> NodeConfig:
    """A broker's configuration, by which a few bytes are durable soon: with the defaults they wait for ten seconds.

    Args:
        values: by key, or by field of `BrokerConfig`; parsed already, in the unit of the field.
    """
    by_key = {_BY_FIELD.get(name, name): value for name, value in values.items() if name not in _WITHOUT_KEY}
    assert by_key.keys() <= keys_of(NodeConfig).keys(), by_key.keys() - keys_of(NodeConfig).keys()
    config = build(NodeConfig, {"flushCommitLogLeastPages": 0, **by_key})
    store = config.broker.store
    if store.compaction is not None:
        compaction = dataclasses.replace(store.compaction, flush_interval_ms=100)
        config.broker.store = dataclasses.replace(store, compaction=compaction)
    for name in _WITHOUT_KEY & values.keys():
        setattr(config.broker, name, values[name])
    return config
