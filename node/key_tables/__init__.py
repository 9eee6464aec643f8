"""Every configuration key of RocketMQ 5.3 and our own, as tables: `key|type|default|tag|meaning`, one a line.

Types: `bool`, `int` (32 bits), `long`, `double`, `text`, or the allowed words divided by `/`. Tags: `*` has an effect
here (`effects` says which), `j` tunes Java's threads, queues and buffers, `d` is done differently here, `f` belongs to
a feature that this version does not have. Names, types and defaults are facts of upstream's configuration classes;
defaults that upstream computes from the machine are described in words between `<` and `>`.

Source: apache/rocketmq 5.3.3, `BrokerConfig`, `BrokerIdentity`, `MessageStoreConfig`, `NettyServerConfig`,
`NettyClientConfig`, `NamesrvConfig`, `ControllerConfig`, `AuthConfig`; keys that 5.4 adds are marked in their meaning.
"""
