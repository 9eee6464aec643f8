"""Keys of RocketMQ's MessageStoreConfig, and those of older releases that users' files still have."""

TABLE = """
abortFile|text|<storePathRootDir/abort>|d|File that marks an unclean stop; ignored upstream since 4.0.
accessMessageInMemoryHotRatio|int|26|*|Percentage of memory whose newest messages count as hot.
accessMessageInMemoryMaxRatio|int|40|*|Percentage of memory within which messages count as not on disk only.
allAckInSyncStateSet|bool|false|f|A message must be on every member of the in-sync set before it is acknowledged.
asyncLearner|bool|false|f|This replica copies but never belongs to the in-sync set.
autoMessageVersionOnTopicLen|bool|true|d|Choose the record's version by the length of the topic.
batchDispatchRequestThreadPoolNums|int|16|j|Threads that build consume queues side by side.
bitMapLengthConsumeQueueExt|int|64|f|Bits of the filter map in a consume queue's extension.
bottomMostCompressionTypeForConsumeQueueStore|text|zstd|f|Compression of the lowest level of consume queues in RocksDB.
brokerRole|ASYNC_MASTER/SYNC_MASTER/SLAVE|ASYNC_MASTER|*|Place in classic replication of masters and slaves.
checkCRCOnRecover|bool|true|d|Check the sums of records when the log is recovered.
cleanFileForciblyEnable|bool|true|*|Delete old files before their time when the disk runs full.
cleanResourceInterval|int|10000|*|Time in ms between two looks for files to delete.
cleanRocksDBDirtyCQIntervalMin|long|60|f|Minutes between two clean-ups of consume queues in RocksDB.
cleanSwapedMapInterval|long|300000|j|Time in ms between two clean-ups of swapped mappings.
coldDataFlowControlEnable|bool|false|*|Limit the reading of messages that are no longer in memory.
coldDataScanEnable|bool|false|f|Look regularly which pages of the log are in memory.
combineAssignOffsetCQType|text|default|f|Kind of consume queue that gives out offsets when two kinds are kept (5.4).
combineCQEnableCheckSelf|bool|false|f|Compare both kinds of consume queue (5.4).
combineCQLoadingCQTypes|text|default;defaultRocksDB|f|Kinds of consume queue that are loaded (5.4).
combineCQMaxExtraSearchCommitLogFiles|int|3|f|Further log files searched when both kinds are aligned (5.4).
combineCQPreferCQType|text|default|f|Kind of consume queue that is read when two kinds are kept (5.4).
commitCommitLogLeastPages|int|4|*|Fewest pages copied at once from the pool of write buffers.
commitCommitLogThoroughInterval|int|200|*|Time in ms after which the pool's buffers are copied whatever they hold.
commitIntervalCommitLog|int|200|*|Time in ms between two copies from the pool of write buffers.
commitLogForceSwapMapInterval|long|43200000|j|Time in ms after which old mappings of the log are swapped anyway.
commitLogSwapMapInterval|long|3600000|j|Time in ms between two swaps of old mappings of the log.
commitLogSwapMapReserveFileNum|int|100|*|Newest log files whose mappings are not swapped.
compactionCqMappedFileSize|int|10485760|*|Bytes of a consume-queue file of compacted topics.
compactionMappedFileSize|int|104857600|*|Bytes of a log file of compacted topics.
compactionScheduleInternal|int|900000|*|Time in ms between two compactions.
compactionThreadNum|int|6|*|Threads that compact.
correctLogicMinOffsetForceInterval|int|300000|d|Time in ms after which first offsets of queues are corrected anyway.
correctLogicMinOffsetSleepInterval|int|1|d|Pause in ms between corrections of first offsets.
dLegerGroup|text||*|Name of the Raft group; members of other groups are refused.
dLegerPeers|text||*|Members of the Raft group: n0-host:port;n1-host:port;n2-host:port.
dLegerSelfId|text||*|Which of dLegerPeers this node is.
dataReadAheadEnable|bool|true|*|Let the system read ahead in the log's files.
debugLockEnable|bool|false|j|Log how long locks of the store are held.
defaultQueryMaxNum|int|32|*|Most messages that a query by key gives.
deleteCommitLogFilesInterval|int|100|*|Pause in ms between two deleted files of the log.
deleteConsumeQueueFilesInterval|int|100|*|Pause in ms between two deleted files of consume queues.
deleteFileBatchMax|int|10|*|Most files deleted in one round.
deleteWhen|text|04|*|Hours of the day, divided by semicolons, at which old files are deleted.
destroyMapedFileIntervalForcibly|int|120000|*|Time in ms after which a file in use is deleted anyway.
disappearTimeAfterStart|int|-1|d|Time in ms after the start before the broker registers.
diskFallRecorded|bool|true|f|Keep count of how far consumers' reads lie behind.
diskMaxUsedSpaceRatio|int|75|*|Percentage of a full disk from which old files are deleted.
diskSpaceCleanForciblyRatio|int|85|*|Percentage of a full disk from which files are deleted before their time.
diskSpaceWarningLevelRatio|int|90|*|Percentage of a full disk from which sends are refused.
dispatchCqCacheNum|int|4096|j|Records handed to the consume-queue builders at once.
dispatchCqThreads|int|10|j|Threads that build consume queues.
dispatchFromSenderThread|bool|false|j|Build consume queues in the thread that stores the message.
duplicationEnable|bool|false|d|Allow the log to be copied by other means; keeps a confirm offset by hand.
enableAcceleratedRecovery|bool|false|f|Skip most of the recovery when consume queues lie in RocksDB (5.4).
enableAsyncReput|bool|true|j|Build consume queues by several threads.
enableAutoInSyncReplicas|bool|false|f|Lower the number of replicas to wait for by those that are there.
enableBatchPush|bool|false|d|Push several Raft entries at once; always done here.
enableBuildConsumeQueueConcurrently|bool|false|j|Build consume queues side by side.
enableCleanExpiredOffset|bool|false|d|Delete offsets of topics that are gone.
enableCompaction|bool|true|*|Serve topics that keep only the last message of each key.
enableConsumeQueueExt|bool|false|*|Keep extensions of consume queues for filters.
enableDLegerCommitLog|bool|false|*|Replicate the commit log by Raft.
enableLmq|bool|false|*|Serve light queues.
enableLogConsumeQueueRepeatedlyBuildWhenRecover|bool|false|j|Log units that recovery builds twice (5.4).
enableMultiDispatch|bool|false|*|Put one message into several queues.
enableRocksDBLog|bool|false|f|Write RocksDB's own log.
enableRunningFlagsInFlush|bool|false|d|Note failed flushes in the store's flags (5.4).
enableScheduleAsyncDeliver|bool|false|f|Deliver delayed messages without waiting for each.
enableScheduleMessageStats|bool|true|f|Keep statistics of delayed messages.
enabledAppendPropCRC|bool|false|*|Add a sum over the whole record to its properties.
fastFailIfNoBufferInStorePool|bool|false|*|Refuse sends when the pool of write buffers is empty.
fileReservedTime|int|72|*|Hours for which files are kept.
flushCommitLogLeastPages|int|4|*|Fewest pages worth a flush with ASYNC_FLUSH.
flushCommitLogThoroughInterval|int|10000|*|Time in ms after which the log is flushed whatever waits.
flushCommitLogTimed|bool|true|*|Flush at fixed times rather than when enough waits.
flushConsumeQueueLeastPages|int|2|*|Fewest pages of a consume queue flushed at once.
flushConsumeQueueThoroughInterval|int|60000|*|Time in ms after which consume queues are flushed whatever waits.
flushDelayOffsetInterval|long|10000|f|Time in ms between two writes of the delay offsets to their file.
flushDiskType|ASYNC_FLUSH/SYNC_FLUSH|ASYNC_FLUSH|*|Whether an acknowledgement waits for the disk.
flushIntervalCommitLog|int|500|*|Time in ms between two flushes of the log with ASYNC_FLUSH.
flushIntervalConsumeQueue|int|1000|*|Time in ms between two flushes of the consume queues.
flushLeastPagesWhenWarmMapedFile|int|4096|*|Pages after which a file being warmed is flushed.
forceVerifyPropCRC|bool|false|f|Refuse records without the sum over the whole record.
haFlowControlEnable|bool|false|f|Limit the rate of replication.
haHousekeepingInterval|int|20000|f|Silence in ms after which a replication connection is closed.
haListenPort|int|<listenPort + 1>|f|Port of classic replication.
haMasterAddress|text||f|Replication address of the master, for a slave.
haMaxGapNotInSync|int|268435456|f|Bytes of lag from which a slave does not count.
haMaxTimeSlaveNotCatchup|long|15000|f|Time in ms after which a lagging slave leaves the in-sync set.
haSendHeartbeatInterval|int|5000|f|Time in ms between two heartbeats of replication.
haSlaveFallbehindMax|int|268435456|f|Name of haMaxGapNotInSync in 4.x.
haTransferBatchSize|int|32768|f|Bytes sent to a slave at once.
inSyncReplicas|int|1|f|Replicas a synchronous master waits for.
logicQueueForceSwapMapInterval|long|43200000|j|Time in ms after which old mappings of consume queues are swapped anyway.
logicQueueSwapMapInterval|long|3600000|j|Time in ms between two swaps of old mappings of consume queues.
logicQueueSwapMapReserveFileNum|int|20|j|Newest consume-queue files whose mappings are not swapped.
logicalDiskSpaceCleanForciblyThreshold|double|0.8|*|Part of a full disk, of several, from which its files are deleted.
mappedFileSizeCommitLog|int|1073741824|*|Bytes of a file of the log.
mappedFileSizeConsumeQueue|int|6000000|*|Bytes of a file of a consume queue, rounded up to whole units of 20.
mappedFileSizeConsumeQueueExt|int|50331648|*|Bytes of a file of a consume queue's extension.
mappedFileSizeTimerLog|int|104857600|*|Bytes of a file of the timer's log.
mappedFileSwapEnable|bool|true|*|Swap old mappings out.
mapperFileSizeBatchConsumeQueue|int|13800000|*|Bytes of a file of a batch consume queue.
maxAsyncPutMessageRequests|int|5000|d|Most sends that wait for their flush.
maxBatchDeleteFilesNum|int|50|f|Most files deleted when replicas are aligned.
maxChecksumRange|long|1073741824|f|Most bytes compared when replicas are checked.
maxConsumeQueueScan|int|20000|f|Most units scanned before lag is estimated.
maxFilterMessageSize|int|16000|*|Bytes of units that one filtered pull looks at.
maxHaTransferByteInSecond|long|104857600|f|Most bytes of replication in a second.
maxHashSlotNum|int|5000000|*|Slots of an index file.
maxIndexNum|int|20000000|*|Entries of an index file.
maxLmqConsumeQueueNum|int|20000|*|Most light queues.
maxMessageSize|int|4194304|*|Most bytes of a message's body.
maxMsgsNumBatch|int|64|*|Most messages that one query by key looks at.
maxOffsetMapSize|int|104857600|*|Bytes of the table that compaction works with.
maxRecoveryCommitlogFiles|int|30|d|Most files that a recovery looks at.
maxSlaveResendLength|long|268435456|f|Most bytes that replicas compare when they are aligned.
maxTopicLength|int|127|*|Most characters of a topic's name.
maxTransferBytesOnMessageInDisk|int|65536|*|Most bytes of one pull from disk.
maxTransferBytesOnMessageInMemory|int|262144|*|Most bytes of one pull.
maxTransferCountOnMessageInDisk|int|8|*|Most messages of one pull from disk.
maxTransferCountOnMessageInMemory|int|32|*|Most messages of one pull.
memTableFlushIntervalMs|long|3600000|f|Time in ms between two flushes of RocksDB's memory.
messageDelayLevel|text|1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h|d|Delays by level.
messageIndexEnable|bool|true|*|Build the index by message key.
messageIndexSafe|bool|false|*|Check the index after an unclean stop.
minInSyncReplicas|int|1|f|Fewest replicas with which a master goes on.
offsetCheckInSlave|bool|false|d|Let a slave correct the offset of a pull it cannot serve.
osPageCacheBusyTimeOutMills|long|1000|d|Time in ms of one append from which the broker counts as busy.
preferredLeaderId|text||*|Member of dLegerPeers that is handed leadership when it is up to date.
pullBatchMaxMessageCount|int|160|d|Most messages of one batch pull.
putConsumeQueueDataByFileChannel|bool|true|j|Write consume queues by file calls rather than by mapping.
putMessageTimeout|int|8000|d|Time in ms that a send may take in the store.
putMsgIndexHightWater|int|600000|j|Waiting index entries from which building slows down.
readOnlyCommitLogStorePaths|text||f|Folders of log files that are only read.
readUnCommitted|bool|false|d|Show messages before replicas have them; never done here.
realTimePersistRocksDBConfig|bool|true|f|Write configuration to RocksDB at each change.
recheckReputOffsetFromCq|bool|false|d|Find out from consume queues where dispatch goes on.
redeleteHangedFileInterval|int|120000|d|Time in ms between two attempts to delete a file in use.
replicasPerDiskPartition|int|1|*|Replicas that share a disk.
rocksdbCQDoubleWriteEnable|bool|false|f|Write consume queues to RocksDB, too.
rocksdbCompressionType|text|lz4|f|Compression in RocksDB.
rocksdbFlushWalFrequency|int|1024|f|Writes between two flushes of RocksDB's log.
rocksdbWalFileRollingThreshold|long|1073741824|f|Bytes after which RocksDB's log starts a new file.
sampleCountThreshold|int|5000|f|Matches after which lag is estimated from samples.
sampleSteps|int|32|f|Pages between two samples of what is in memory.
scheduleAsyncDeliverMaxPendingLimit|int|2000|f|Most delayed messages in delivery.
scheduleAsyncDeliverMaxResendNum2Blocked|int|3|f|Failed deliveries after which a level waits.
searchBcqByCacheEnable|bool|true|d|Search batch consume queues by a cache.
slaveTimeout|int|3000|*|Time in ms a batch may wait for replicas (here: for a quorum) before its senders get code 12.
spinLockCollisionRetreatOptimalDegree|int|1000|j|Tuning of a spinning lock.
statRocksDBCQIntervalSec|long|10|f|Seconds between two statistics of RocksDB.
storeCheckpoint|text|<storePathRootDir/checkpoint>|d|File of the store's check point; ignored upstream since 4.0.
storePathBrokerIdentity|text|<storePathRootDir/brokerIdentity>|f|File of the id that a controller gave.
storePathCommitLog|text|<storePathRootDir/commitlog>|*|Folder of the log.
storePathConsumeQueue|text|<storePathRootDir/consumequeue>|d|Folder of the consume queues; ignored upstream since 4.0.
storePathDLedgerCommitLog|text|<storePathRootDir/dledger-SELFID/data>|d|Folder of the Raft log's data files.
storePathEpochFile|text|<storePathRootDir/epochFileCheckpoint>|f|File of the masters' epochs.
storePathIndex|text|<storePathRootDir/index>|d|Folder of the index files; upstream ignores the key.
storePathRootDir|text|<home folder/store>|*|Folder of everything that the broker stores.
storeType|text|default|f|Kind of store: files or RocksDB; files here.
syncFlushTimeout|int|5000|*|Time in ms a batch may wait for the disk before its senders get code 10.
syncFromLastFile|bool|false|f|An empty slave starts with the master's last file.
syncMasterFlushOffsetWhenStartup|bool|false|f|Ask the master at start how far it has flushed.
timerColdDataCheckIntervalMs|int|60000|f|Time in ms between two looks for cold data.
timerCongestNumEachSlot|int|2147483647|*|Most timers that end in one slot.
timerEnableCheckMetrics|bool|true|d|Check the timer's figures against its log.
timerEnableDisruptor|bool|false|j|Hand timers over by a ring of Java's Disruptor.
timerEnableRetryUntilSuccess|bool|false|d|Try to deliver a timer until it works.
timerFlushIntervalMs|int|1000|*|Time in ms between two flushes of the timer.
timerGetMessageThreadNum|int|3|j|Threads that read timers that end.
timerInterceptDelayLevel|bool|false|f|Handle delay levels by the timer.
timerMaxDelaySec|int|259200|*|Longest delay in seconds.
timerMetricSmallThreshold|int|1000000|d|Timers up to which a topic counts as small.
timerPrecisionMs|int|1000|*|Precision of timers in ms.
timerProgressLogIntervalMs|int|10000|j|Time in ms between two lines in the log about the timer.
timerPutMessageThreadNum|int|3|j|Threads that deliver timers that end.
timerRollWindowSlot|int|172800|*|Slots of the wheel before a timer is rolled on.
timerSkipUnknownError|bool|false|d|Drop timers that fail for an unknown reason.
timerStopDequeue|bool|false|*|Stop the delivery of timers.
timerStopEnqueue|bool|false|*|Stop taking timers.
timerWheelEnable|bool|true|*|Serve timer messages.
topicQueueLockNum|int|32|j|Locks that queues share.
totalReplicas|int|1|f|Replicas of a broker name that there should be.
transientStorePoolEnable|bool|false|*|Write into a pool of buffers first.
transientStorePoolSize|int|5|*|Buffers of the pool.
travelCqFileNumWhenGetMessage|int|1|d|Files of a consume queue that one pull may walk through.
useABSLock|bool|false|j|Use an adaptive lock while appending.
useReentrantLockWhenPutMessage|bool|true|j|Use a waiting lock rather than a spinning one while appending.
wakeCommitWhenPutMessage|bool|true|*|Wake the copying of write buffers at each append.
wakeFlushWhenPutMessage|bool|false|*|Wake the flushing thread at each append.
warmMapedFileEnable|bool|false|*|Touch every page of a new file beforehand.
writeWithoutMmap|bool|false|j|Write by file calls instead of by mapping (5.4).
"""
