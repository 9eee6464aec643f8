"""Keys that RocketMQ does not have, defaults that differ, and what a key does here beyond its meaning."""

BROKER_TABLE = """
advertisedHost|text|<an address of this machine>|*|Another name of brokerIP1, easier to remember.
advertisedPort|int|<listenPort>|*|Port that routes name, where a container's port is mapped to another one.
healthHost|text|<bindAddress>|*|Address at which /livez, /readyz and /metrics are served over HTTP.
healthPort|port or off|<listenPort + 5>|*|Port of /livez, /readyz and /metrics; off serves none.
insideHost|text|<an address of this machine>|*|Another name of brokerIP2, easier to remember.
maxConnections|int|10000|*|Most connections of clients; one more is closed at once.
maxConnectionsPerAddress|int|1000|*|Most connections from one other address; one more is closed at once.
maxFrameSize|int|16777216|*|Most bytes of one request.
maxHeaderFields|int|128|*|Most fields of one request's header; one more closes the connection.
maxHeaderSize|int|262144|*|Most bytes of one request's header; a longer one closes the connection.
maxRequestsInFlight|int|16384|*|Most unanswered requests of one connection; one more is answered 2, system busy.
maxTopics|int|100000|*|Most topics; automatic creation refuses more.
maxUnfinishedSize|int|268435456|*|Most bytes of requests that came in part, but 64 KiB of each; the oldest are closed.
maxUnsentSize|int|67108864|*|Most bytes of answers that one connection's peer leaves unread; then it is closed.
raftElectionTimeout|int|700|*|Silence in ms after which a follower stands for election, half as much again at most.
raftHeartbeatInterval|int|100|*|Time in ms between two heartbeats of a Raft leader.
tls.client.checkHost|bool|true|*|Servers' certificates must name the host or address that was dialled.
"""

NAMESRV_TABLE = """
advertisedHost|text|<an address of this machine>|*|Host under which this nameserver is shown to the user.
brokerHeartbeatTimeout|int|120000|*|Silence in ms after which a broker is dropped that did not say its own time.
healthHost|text|<bindAddress>|*|Address at which /livez, /readyz and /metrics are served over HTTP.
healthPort|port or off|<listenPort + 5>|*|Port of /livez, /readyz and /metrics; off serves none.
maxConnections|int|10000|*|Most connections; one more is closed at once.
maxConnectionsPerAddress|int|1000|*|Most connections from one other address; one more is closed at once.
maxFrameSize|int|16777216|*|Most bytes of one request.
maxHeaderFields|int|128|*|Most fields of one request's header; one more closes the connection.
maxHeaderSize|int|262144|*|Most bytes of one request's header; a longer one closes the connection.
maxRequestsInFlight|int|16384|*|Most unanswered requests of one connection; one more is answered 2, system busy.
maxRegistrationSize|int|16777216|*|Most bytes of a broker's registration once it is inflated.
maxUnfinishedSize|int|268435456|*|Most bytes of requests that came in part, but 64 KiB of each; the oldest are closed.
maxUnsentSize|int|67108864|*|Most bytes of answers that one connection's peer leaves unread; then it is closed.
tls.client.checkHost|bool|true|*|Servers' certificates must name the host or address that was dialled.
maxRouteWait|int|30000|*|Longest time in ms for which a client may wait for a change of a route.
"""

DEFAULTS_HERE = {
    "brokerHeartbeatInterval": "5000",
    "flushConsumeQueueThoroughInterval": "10000",
    "flushDiskType": "<SYNC_FLUSH in Raft mode, else ASYNC_FLUSH>",
    "slaveReadEnable": "true",
    "tls.client.authServer": "true",
    "tls.server.mode": "<permissive with tls.server.certPath, else disabled>",
    "tls.test.mode.enable": "false",
}
"""Defaults that differ from RocketMQ's."""

EFFECTS = {
    "brokerHeartbeatInterval": "Sent in every mode; RocketMQ sends it with enableSlaveActingMaster only.",
    "brokerId": "Has no effect in Raft mode: the leader registers 0, a follower the number in its node id plus one.",
    "brokerIP1": "Chosen and printed at the start, with the other candidates, when it is not set.",
    "brokerIP2": "In Raft mode the host of this node's entry in dLegerPeers, when it is not set.",
    "brokerRole": "ASYNC_MASTER only: SYNC_MASTER and SLAVE are refused, for replication use enableDLegerCommitLog.",
    "checkCRCOnRecover": "Always checked.",
    "dLegerPeers": "Members are known by cluster, group, id and incarnation; names are resolved at each connection.",
    "correctLogicMinOffsetForceInterval": "Corrected whenever files of the log go, and at each start.",
    "correctLogicMinOffsetSleepInterval": "Corrected in slices of five milliseconds.",
    "compactionMappedFileSize": "Made a multiple of compactionCqMappedFileSize, five times it at least, as upstream.",
    "compactionThreadNum": "At most as many as the machine has cores.",
    "metricsExporterType": "OTLP_GRPC and LOG are refused; the page of healthPort always has them, and more.",
    "metricsInDelta": "Puts the label aggregation=delta on every series, as upstream; Prometheus' sums stay sums.",
    "enableCompaction": "Each member of a Raft group compacts its own copy; only what is on disk is copied.",
    "maxOffsetMapSize": "Of all threads together; keys that find no room are compacted the next time.",
    "deleteWhen": "By the local time of the machine.",
    "destroyMapedFileIntervalForcibly": "A file goes at once; readers keep its bytes as long, then they are freed.",
    "diskMaxUsedSpaceRatio": "Kept within 10 and 95.",
    "diskSpaceCleanForciblyRatio": "Kept within 30 and 85.",
    "diskSpaceWarningLevelRatio": "Kept within 35 and 90; topics, groups and consumers' offsets are still taken.",
    "fileReservedTime": "Never what is not confirmed, not in the queues yet, or what a Raft member within reach lacks.",
    "redeleteHangedFileInterval": "No file hangs: one that is read goes too, and its reader keeps its bytes.",
    "flushDiskType": "In Raft mode an entry counts for the quorum on a node when it is durable by this rule.",
    "bitMapLengthConsumeQueueExt": "Extensions are kept and read; filters that fill bit maps are not here.",
    "enableCleanExpiredOffset": "Offsets go with their topic.",
    "enableConsumeQueueExt": "What is there is read in any case.",
    "flushConsumeQueueThoroughInterval": "Queues are synced then, and the checkpoint is written.",
    "mapperFileSizeBatchConsumeQueue": "Rounded up to whole units of 46 bytes.",
    "searchBcqByCacheEnable": "Found by halving, without a cache.",
    "defaultQueryMaxNum": "Of a query by unique key, which does not say how many it wants.",
    "maxMsgsNumBatch": "Messages that do not have the key are left out by the broker.",
    "messageIndexEnable": "Switched on again it takes in what was sent meanwhile.",
    "messageIndexSafe": "The index is complete again after every stop; with true before the broker serves.",
    "storePathIndex": "Always storePathRootDir/index, as upstream.",
    "messageDelayLevel": "The levels are RocketMQ's defaults.",
    "mappedFileSizeConsumeQueue": "Rounded up to whole units of 20 bytes.",
    "slaveReadEnable": "Followers always serve reads, up to what a quorum has confirmed.",
    "slaveTimeout": "The time a batch may wait for a quorum.",
    "storePathConsumeQueue": "Always storePathRootDir/consumequeue.",
    "storePathDLedgerCommitLog": "Always storePathRootDir/dledger-SELFID/data.",
    "commitLogSwapMapReserveFileNum": "Most files of the log mapped at once; others are mapped when read.",
    "dataReadAheadEnable": "Of the standalone log.",
    "flushCommitLogLeastPages": "Of the standalone log; a Raft log with ASYNC_FLUSH flushes whatever waits.",
    "flushCommitLogTimed": "false also flushes when records were committed, or placed (wakeFlushWhenPutMessage).",
    "transientStorePoolEnable": "Standalone only. Messages are acknowledged when committed; RocketMQ answers before.",
    "useReentrantLockWhenPutMessage": "The event loop is the only writer of the log: there is no lock to choose.",
    "wakeCommitWhenPutMessage": "true commits at the end of each turn; false by interval and pages.",
    "warmMapedFileEnable": "Of the standalone log: zeros are written, flushed with SYNC_FLUSH, and the pages locked.",
    "aclEnable": "Refused unless authentication and authorization are enabled: RocketMQ 5.3.3 takes and ignores it.",
    "authenticationEnabled": "Every request of a broker; nameservers ask nobody, as upstream.",
    "authorizationEnabled": "What has no rule upstream needs the cluster's Update, or Get where it only shows.",
    "initAuthenticationUser": "Made by the leader when there is no such user; never shown.",
    "innerClientAuthenticationCredentials": "Made likewise; brokers have no requests of their own to sign.",
    "migrateAuthFromV1Enabled": "Use `ledgermq acl import`.",
    "tls.client.authServer": "RocketMQ verifies nobody unless told to.",
    "tls.client.trustCertPath": "Without it those of the system.",
    "tls.server.authClient": "A client's certificate that is asked for is always verified.",
    "tls.server.certPath": "PEM; taken anew for new connections, with its key, when the files change.",
    "tls.server.mode": "Members of a Raft group speak plain among themselves in every mode.",
    "tls.test.mode.enable": "No certificate is made up, and trusting everybody must be said.",
    "useTLS": "To nameservers; a nameserver connects to nobody.",
    "enabledAppendPropCRC": "Of the standalone log; properties that would become too long get none.",
}
"""What a key does here, in words to add to its meaning."""
