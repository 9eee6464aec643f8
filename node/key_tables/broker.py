"""Keys of RocketMQ's BrokerConfig and BrokerIdentity."""

TABLE = """
accountStatsEnable|bool|true|f|Keep statistics per account for billing.
accountStatsPrintZeroValues|bool|true|f|Write account statistics to the log even when they are zero.
ackMessageThreadPoolNums|int|16|j|Threads that handle acknowledgements of POP messages.
ackThreadPoolQueueCapacity|int|100000|j|Waiting acknowledgements before the broker refuses more.
aclEnable|bool|false|*|Check signatures and permissions by the old access control of 4.x.
adminBrokerThreadPoolNums|int|16|j|Threads that handle administrative requests.
adminBrokerThreadPoolQueueCapacity|int|10000|j|Waiting administrative requests before the broker refuses more.
allowRecallWhenBrokerNotWriteable|bool|true|*|Let timers be recalled while the broker takes no messages.
appendAckAsync|bool|false|f|Store POP acknowledgements without waiting for the store's answer.
appendCkAsync|bool|false|f|Store POP check points without waiting for the store's answer.
asyncSendEnable|bool|true|d|Let the thread that takes a message go on before the message is stored.
autoCreateSubscriptionGroup|bool|true|*|A consumer group that is not known is created when a consumer of it appears.
autoCreateTopicEnable|bool|true|*|A message for an unknown topic creates it, after the template TBW102.
autoDeleteUnusedStats|bool|true|j|Forget statistics of topics and groups that are deleted.
broadcastOffsetExpireMaxSecond|long|300|f|Longest time for which offsets of a broadcasting proxy consumer are kept.
broadcastOffsetExpireSecond|long|120|f|Idle time after which offsets of a broadcasting proxy consumer are dropped.
brokerClusterName|text|DefaultCluster|*|Name of the cluster that the broker belongs to.
brokerConfigPath|text||d|Where upstream writes settings that were changed at run time.
brokerElectionPriority|int|2147483647|f|Preference of this broker when a controller elects a master; smaller wins.
brokerFastFailureEnable|bool|true|d|Refuse requests that have waited too long in a queue.
brokerHeartbeatInterval|int|1000|*|Time in ms between two heartbeats to the nameservers.
brokerIP1|text|<an address of this machine>|*|Host that routes name: what clients dial.
brokerIP2|text|<an address of this machine>|*|Host that the other members of the cluster dial.
brokerId|long|0|*|Number of this broker within its name: 0 is the master. In Raft mode roles decide instead.
brokerName|text|<the host's name>|*|Name that this broker and its replicas share in routes.
brokerNotActiveTimeoutMillis|long|10000|*|Silence in ms after which a nameserver drops this broker.
brokerPermission|int|6|*|What the whole broker allows: 4 read, 2 write, 6 both.
brokerTopicEnable|bool|true|d|Create a topic named like the broker at start.
cgColdReadThreshold|long|3145728|*|Bytes a consumer group may read from cold files in a period.
channelExpiredTimeout|long|120000|d|Silence in ms after which a client is forgotten.
checkSyncStateSetPeriod|long|5000|f|Time in ms between two checks of the in-sync set with a controller.
cleanOfflineBrokerInterval|int|30000|f|Time in ms between two clean-ups of brokers that an embedding container lost.
clearRetryTopicWhenDeleteTopic|bool|true|*|Deleting a topic deletes the POP retry topics made for it.
clientManageThreadPoolNums|int|32|j|Threads that handle clients coming and going.
clientManagerThreadPoolQueueCapacity|int|1000000|j|Waiting client requests before the broker refuses more.
clusterTopicEnable|bool|true|d|Create a topic named like the cluster at start.
coldCtrStrategyEnable|bool|false|f|Slow down consumers that read cold files, by feedback.
commercialBaseCount|int|1|f|Multiplier of the count of messages for billing.
commercialSizePerMsg|int|4096|f|Bytes that count as one message for billing.
compatibleWithOldNameSrv|bool|true|d|Send heartbeats in the form that nameservers before 5.0 know.
compressedRegister|bool|false|d|Compress the body of registrations at nameservers.
configBlackList|text|configBlackList;brokerConfigPath|*|Keys that may not be changed at run time.
configManagerVersion|text|v1|f|Layout of the configuration kept in RocksDB.
consumerFallbehindThreshold|long|17179869184|f|Bytes of lag from which a consumer counts as slow.
consumerManageThreadPoolNums|int|32|j|Threads that handle consumer lists and offsets.
consumerManagerThreadPoolQueueCapacity|int|1000000|j|Waiting consumer requests before the broker refuses more.
consumerOffsetUpdateVersionStep|long|500|d|Offset commits between two new versions of the offset table.
controllerAddr|text||f|Addresses of the controllers, divided by semicolons.
controllerHeartBeatTimeoutMills|long|10000|f|Silence in ms after which a controller drops this broker.
defaultMessageRequestMode|PULL/POP|PULL|*|How push consumers fetch when nothing is set for their group.
defaultPopShareQueueNum|int|-1|*|Consumers that may share a queue in POP mode; -1 all.
defaultTopicQueueNums|int|8|*|Most queues that an automatically created topic gets.
delayOffsetUpdateVersionStep|long|200|f|Delivered delay messages between two new versions of the delay offsets.
disableConsumeIfConsumerReadSlowly|bool|false|f|Stop consumers that lag too far behind.
enableBroadcastOffsetStore|bool|true|f|Keep offsets of broadcasting consumers that come through a proxy.
enableCalcFilterBitMap|bool|false|f|Compute bit maps of matching consumers while messages are stored.
enableConnectionMetrics|bool|true|f|Report connections as metrics (5.4).
enableControllerMode|bool|false|f|Let a controller elect masters.
enableCreateSysGroup|bool|true|d|Create the system's consumer groups at start.
enableDetailStat|bool|true|f|Keep statistics in detail.
enableFastChannelEventProcess|bool|false|j|Handle closed client connections in batches.
enableLagAndDlqMetrics|bool|true|f|Report lag and dead letters as metrics (5.4).
enableLmqStats|bool|false|f|Keep statistics of light queues.
enableMessageStoreMetrics|bool|true|f|Report the store's figures as metrics (5.4).
enableMixedMessageType|bool|false|*|Allow topics whose messages are of several types.
enableNetWorkFlowControl|bool|false|f|Limit the rate of answers by the network's capacity.
enableNotifyAfterPopOrderLockRelease|bool|true|*|Wake waiting consumers when an ordered POP lock is free.
enableNotifyBeforePopCalculateLag|bool|true|f|Notify POP consumers before their lag is computed.
enablePopBatchAck|bool|false|f|Store several POP acknowledgements as one message.
enablePopBufferMerge|bool|false|f|Match POP check points and acknowledgements in memory first.
enablePopLog|bool|false|f|Log POP in detail.
enablePopMessageThreshold|bool|false|*|Limit messages that a POP group has in flight.
enablePopMetrics|bool|true|f|Report POP's figures as metrics (5.4).
enablePropertyFilter|bool|false|*|Let consumers filter by SQL over message properties.
enableRegisterProducer|bool|true|d|Keep a list of producers.
enableRemoteEscape|bool|false|f|Send messages to other brokers of the container while there is no master.
enableRemotingMetrics|bool|true|f|Report requests and answers as metrics (5.4).
enableRequestMetrics|bool|true|f|Report requests by code as metrics (5.4).
enableRetryTopicV2|bool|false|*|Name POP retry topics by the newer rule.
enableSingleTopicRegister|bool|false|d|Announce one changed topic by a request of its own.
enableSkipLongAwaitingAck|bool|false|f|Give up POP check points that wait too long for an acknowledgement.
enableSlaveActingMaster|bool|false|f|Let a slave stand in for a lost master, reading only.
enableSplitMetadata|bool|true|d|Send large tables to slaves in parts (5.4).
enableSplitRegistration|bool|false|d|Register many topics in parts.
enableStatsMetrics|bool|true|f|Report statistics as metrics (5.4).
enableTransactionMetrics|bool|true|f|Report transactions as metrics (5.4).
endTransactionPoolQueueCapacity|int|100000|j|Waiting commits and rollbacks before the broker refuses more.
endTransactionThreadPoolNums|int|<from the number of cores>|j|Threads that handle commits and rollbacks of transactions.
estimateAccumulation|bool|true|f|Estimate lag when filters make counting expensive.
expectConsumerNumUseFilter|int|32|f|Filtering consumers for which the bit map is sized.
fetchControllerAddrByDnsLookup|bool|false|f|Find controllers by DNS.
fetchNameSrvAddrByDnsLookup|bool|false|d|Look up nameservers' names again and again.
fetchNamesrvAddrByAddressServer|bool|false|f|Ask an address server over HTTP for the nameservers.
fetchNamesrvAddrInterval|long|10000|f|Time in ms between two questions to the address server.
filterDataCleanTimeSpan|long|86400000|f|Age in ms after which filter data of absent consumers is dropped.
filterSupportRetry|bool|false|*|Apply SQL filters to messages that are retried, too.
flushConsumerOffsetHistoryInterval|int|60000|d|Time in ms between two copies of the offsets' history.
flushConsumerOffsetInterval|int|5000|*|Time in ms between two writes of the consumer offsets to their file.
forceRegister|bool|true|d|Register at each period even when nothing has changed.
forwardTimeout|long|3000|f|Patience in ms when a request is forwarded to another broker.
globalColdReadThreshold|long|104857600|*|Bytes all consumers may read from cold files in a period.
heartbeatThreadPoolNums|int|<from the number of cores>|j|Threads that handle clients' heartbeats.
heartbeatThreadPoolQueueCapacity|int|50000|j|Waiting heartbeats before the broker refuses more.
highSpeedMode|bool|false|j|Not read by upstream any more.
inBrokerContainer|bool|false|f|The broker runs inside a container of several brokers.
initPopOffsetByCheckMsgInMem|bool|true|*|Decide where a new POP group starts by what is in memory.
isolateLogEnable|bool|false|j|Write the log of each broker of a container to files of its own.
listenPort|int|<10911, for a nameserver 9876>|*|Port at which clients are served.
litePullMessageEnable|bool|true|*|Serve lite pull requests.
litePullMessageThreadPoolNums|int|<from the number of cores>|j|Threads that handle lite pulls.
litePullThreadPoolQueueCapacity|int|100000|j|Waiting lite pulls before the broker refuses more.
loadBalancePollNameServerInterval|long|30000|f|Time in ms between two route refreshes of server-side balancing.
loadBalanceProcessorThreadPoolNums|int|32|j|Threads that share out queues on the server.
loadBalanceThreadPoolQueueCapacity|int|100000|j|Waiting balancing requests before the broker refuses more.
lockInStrictMode|bool|false|f|Ask all replicas when consumers lock queues.
longPollingEnable|bool|true|*|Hold a pull that finds nothing until a message comes or its time is up.
maxErrorRateOfBloomFilter|int|20|f|Percentage of wrong matches allowed to the filter bit map.
maxPopPollingSize|long|100000|*|Waiting POP requests on the whole broker.
maxStatsIdleTimeInMinutes|int|-1|j|Idle minutes after which a statistic is dropped; -1 never.
messageStorePlugIn|text||j|Java classes that wrap the store.
metricGrpcExporterIntervalInMills|long|60000|f|Time in ms between two exports of metrics over gRPC.
metricGrpcExporterTimeOutInMills|long|3000|f|Patience in ms for an export of metrics over gRPC.
metricLoggingExporterIntervalInMills|long|10000|f|Time in ms between two exports of metrics to the log.
metricsExporterType|DISABLE/OTLP_GRPC/PROM/LOG|DISABLE|*|How metrics leave the process, beside the page of healthPort.
metricsGrpcExporterHeader|text||f|Headers sent with metrics over gRPC.
metricsGrpcExporterTarget|text||f|Where metrics go over gRPC.
metricsInDelta|bool|false|*|Export changes of metrics rather than sums.
metricsLabel|text||*|Labels put on every metric, as k:v,k:v.
metricsOtelCardinalityLimit|int|50000|*|Most label sets of one metric.
metricsPromExporterHost|text||*|Host at which RocketMQ's metrics are served as Prometheus text; empty: brokerIP1.
metricsPromExporterPort|int|5557|*|Port at which RocketMQ's metrics are served as Prometheus text.
msgTraceTopicName|text|RMQ_SYS_TRACE_TOPIC|*|Topic that takes message traces.
namesrvAddr|text||*|Nameservers, host:port divided by semicolons; each is told of every role change.
notifyConsumerIdsChangedEnable|bool|true|d|Tell consumers at once when their group's members change.
popCkMaxBufferSize|int|200000|f|Most POP check points kept in memory.
popCkOffsetMaxQueueSize|int|20000|f|Most commit offsets of POP kept per queue in memory.
popCkStayBufferTime|int|10000|f|Time in ms a POP check point stays in memory.
popCkStayBufferTimeOut|int|3000|f|Time in ms before its timeout at which a POP check point is stored.
popConsumerFSServiceInit|bool|true|f|Start POP's bookkeeping on files.
popConsumerKVServiceEnable|bool|false|f|Use POP's bookkeeping on a key-value store.
popConsumerKVServiceInit|bool|false|f|Start POP's bookkeeping on a key-value store.
popConsumerKVServiceLog|bool|false|f|Log POP's bookkeeping on a key-value store.
popFromRetryProbability|int|20|*|Percentage of POP requests that look into the retry topic first.
popInflightMessageThreshold|long|10000|*|Most messages a POP group may have in flight in a queue.
popLongPollingForceNotifyInterval|long|800|f|Time in ms after which waiting POP requests are woken anyway.
popPollingMapExpireTimeSeconds|int|600|f|Idle seconds after which an entry of waiting POP requests is dropped (5.4).
popPollingMapSize|int|100000|f|Most topics and groups with waiting POP requests.
popPollingSize|int|1024|*|Most waiting POP requests of one queue.
popResponseReturnActualRetryTopic|bool|false|*|Show consumers the retry topic a POP message came from.
popReviveMaxAttemptTimes|int|16|f|Attempts to put a POP message back before it is given up.
popReviveMaxReturnSizePerRead|int|16384|f|Most messages that the POP revival reads at once.
printChannelGroups|bool|false|j|Log groups per client connection.
printChannelGroupsMinNum|int|5|j|Groups a connection must have to be logged.
processReplyMessageThreadPoolNums|int|<from the number of cores>|j|Threads that handle replies of request-reply.
pullMessageThreadPoolNums|int|<from the number of cores>|j|Threads that handle pulls.
pullThreadPoolQueueCapacity|int|100000|j|Waiting pulls before the broker refuses more.
putMessageFutureThreadPoolNums|int|<from the number of cores>|j|Threads that answer sends after they are stored.
putThreadPoolQueueCapacity|int|10000|j|Stored messages that wait for their answer.
queryMessageThreadPoolNums|int|<from the number of cores>|j|Threads that handle queries of messages.
queryThreadPoolQueueCapacity|int|20000|j|Waiting queries before the broker refuses more.
realTimeNotifyConsumerChange|bool|true|d|Notify consumers of each change rather than once in a while.
recallMessageEnable|bool|false|*|Let producers take back a timer message.
recoverConcurrently|bool|false|j|Recover consume queues by several threads.
recoverThreadPoolNums|int|32|j|Threads that recover consume queues.
regionId|text|DefaultRegion|*|Name of the region, handed to clients in send answers.
registerBrokerTimeoutMills|int|24000|*|Patience in ms for a nameserver's answer to a registration.
registerNameServerPeriod|int|30000|*|Time in ms between two registrations at the nameservers, 10000 to 60000.
rejectPullConsumerEnable|bool|false|f|Refuse consumers that pull.
rejectTransactionMessage|bool|false|*|Refuse transactional messages.
replyThreadPoolQueueCapacity|int|10000|j|Waiting replies before the broker refuses more.
retrieveMessageFromPopRetryTopicV1|bool|true|*|Read POP retry topics named by the older rule, too.
reviveAckWaitMs|long|180000|f|Time in ms for which acknowledgements without a check point are kept.
reviveInterval|long|1000|f|Time in ms between two rounds of POP revival.
reviveMaxSlow|long|3|f|Slow rounds after which POP revival is counted as behind.
reviveQueueNum|int|8|*|Queues of the POP revival topic.
reviveScanTime|long|10000|f|Longest time in ms of one scan of the POP revival.
rocketmqHome|text|<environment ROCKETMQ_HOME>|d|Folder in which upstream is installed.
sendHeartbeatTimeoutMillis|int|1000|d|Patience in ms for a heartbeat to a nameserver or controller.
sendMessageThreadPoolNums|int|<from the number of cores>|j|Threads that handle sends.
sendThreadPoolQueueCapacity|int|10000|j|Waiting sends before the broker refuses more.
serverLoadBalancerEnable|bool|true|*|Share out queues on the server for consumers that ask for it.
shortPollingTimeMills|long|1000|*|Time in ms for which a pull is held when long polling is off.
skipPreOnline|bool|false|f|Serve at once after a start instead of waiting for the other members.
skipWhenCKRePutReachMaxTimes|bool|false|f|Give up a POP check point that was put back too often.
slaveReadEnable|bool|false|*|Let consumers read from slaves that are not far behind.
splitMetadataSize|int|2000|d|Entries of one part of a table sent to slaves (5.4).
splitRegistrationSize|int|800|d|Topics of one part of a registration.
startAcceptSendRequestTimeStamp|long|0|*|Time in ms since 1970 before which sends are refused.
storeReplyMessageEnable|bool|true|*|Store replies of request-reply for consoles to see.
subscriptionExpiredTimeout|long|600000|f|Age in ms after which an unused subscription is forgotten.
syncBrokerMemberGroupPeriod|int|1000|f|Time in ms between two questions for the members of the own name.
syncBrokerMetadataPeriod|long|5000|f|Time in ms between two registrations at a controller.
syncControllerMetadataPeriod|long|10000|f|Time in ms between two looks for the leading controller.
traceOn|bool|true|*|Tell clients that this broker wants traces.
traceTopicEnable|bool|false|*|Create the topic of message traces at start.
transactionCheckInterval|long|30000|*|Time in ms between two rounds of asking producers for the state of transactions.
transactionCheckMax|int|15|*|Questions after which a transaction is given up.
transactionMetricFlushInterval|long|3000|*|Time in ms between two writes of transaction figures.
transactionOpBatchInterval|int|3000|*|Time in ms for which ends of transactions are gathered.
transactionOpMsgMaxSize|int|4096|*|Bytes of one message that ends transactions.
transactionTimeOut|long|6000|*|Age in ms at which an undecided transaction is asked about.
transferMsgByHeap|bool|true|j|Copy messages to Java's heap before they are sent.
updateNameServerAddrPeriod|int|120000|f|Time in ms between two questions to the address server.
usePIDColdCtrStrategy|bool|true|f|Control reads of cold files by a PID rule.
useServerSideResetOffset|bool|true|f|Reset offsets on the server rather than by telling consumers.
useStaticSubscription|bool|false|f|Believe configured subscriptions when a group has no consumer.
validateSystemTopicWhenUpdateTopic|bool|true|d|Refuse to change system topics.
waitTimeMillsInAckQueue|long|3000|d|Time in ms after which a waiting acknowledgement is refused.
waitTimeMillsInAdminBrokerQueue|long|5000|d|Time in ms after which a waiting administrative request is refused.
waitTimeMillsInHeartbeatQueue|long|31000|d|Time in ms after which a waiting heartbeat is refused.
waitTimeMillsInLitePullQueue|long|5000|d|Time in ms after which a waiting lite pull is refused.
waitTimeMillsInPullQueue|long|5000|d|Time in ms after which a waiting pull is refused.
waitTimeMillsInSendQueue|long|200|d|Time in ms after which a waiting send is refused; no such queue here.
waitTimeMillsInTransactionQueue|long|3000|d|Time in ms after which a waiting end of a transaction is refused.
"""
