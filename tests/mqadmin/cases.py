"""What mqadmin is asked to do, in order: every one of its sub-commands, most with a refusal or two beside the use.

`{cluster}`, `{broker}`, `{address}` (of the master), `{namesrv}`, `{work}` (a folder), and what earlier cases printed
(`{offset_id}`, `{unique_key}`) are filled in. What a real broker printed is in `java-5.3.3.txt`; where ours prints
something else, `ours.txt` has it, and the case says why.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One command.

    Attributes:
        words: as typed, divided by blanks.
        differs: why ours prints something else; None: it prints the same.
        numbers: small numbers are compared, too.
        only: a regular expression; only lines that it is found in are compared.
        sorted: the order of lines means nothing.
        limit_ms: how long it may run; a command that never ends by itself is interrupted then.
        in_raft: why it prints something else of a Raft group.
        until: a regular expression; asked again until it is found in what is printed.
    """

    words: str
    differs: str | None = None
    numbers: bool = True
    only: str = ""
    sorted: bool = False
    limit_ms: int = 60_000
    until: str = ""
    in_raft: str = ""

    @property
    def command(self) -> str:
        return self.words.split()[0]


_ENDLESS_MS = 1500
_NO_RETRIES = "^[^%]"
"""A consumer commits its place in its retry topic when it comes to it."""
_CONSUMED = r"(?s)MqaTopic.*Diff Total: 0"
_FOLLOWERS = "its followers are shown, too"
_ROUTE = r"brokerAddrs"
_NO_CONTROLLER = "a broker is no controller: controllers are processes of their own"
SECRET = "passwords are not shown"
_OURS_REFUSES = "refused with code 3 and the reason"

CASES = (
    # topics
    Case("updateTopic -c {cluster} -t MqaTopic -r 2 -w 2"),
    Case("updateTopic -b {address} -t MqaTopic -r 2 -w 2 -a +message.type=NORMAL"),
    Case("updateTopic -b {address} -t MqaOrder -r 2 -w 2 -o true"),
    Case("updateTopic -b {address} -t bad.name"),
    Case("updateTopic -b {address} -t SELF_TEST_TOPIC"),
    Case("updateTopic -b {address} -t MqaMixed -a +message.type=MIXED"),
    Case("updateTopic -b {address} -t MqaOther -a +no.such.attribute=1"),
    Case("updateTopicList -b {address} -f {work}/topics.json"),
    Case("updateTopicList -b {address} -f {work}/none.json"),
    Case("topicRoute -t MqaTopic", until=_ROUTE, in_raft=_FOLLOWERS),
    Case("topicRoute -t MqaListA -l", until="Total", in_raft=_FOLLOWERS),
    Case("topicRoute -t MqaNone"),
    Case("!produce MqaProducers MqaTopic MqaKey 6", only="^$"),
    Case("topicStatus -t MqaTopic"),
    Case("topicStatus -t MqaNone"),
    Case("topicClusterList -t MqaTopic"),
    Case("topicList", only="Mqa", sorted=True),
    Case("topicList -c", only="Mqa", sorted=True),
    Case("updateTopicPerm -b {address} -t MqaListA -p 4"),
    Case("updateTopicPerm -c {cluster} -t MqaListB -p 6"),
    Case("updateTopicPerm -b {address} -t MqaNone -p 4"),
    Case("allocateMQ -t MqaTopic -i 10.0.0.1,10.0.0.2"),
    Case("updateOrderConf -m put -t MqaOrder -v {broker}:2"),
    Case("updateOrderConf -m get -t MqaOrder"),
    Case("updateOrderConf -m delete -t MqaOrder"),
    Case("updateStaticTopic -c {cluster} -t MqaStatic -qn 2", differs=_OURS_REFUSES),
    Case("remappingStaticTopic -c {cluster} -t MqaTopic"),
    # messages
    Case("sendMessage -t MqaTopic -p hello -k MqaSent -c TagB -b {broker} -i 1"),
    Case("sendMessage -t MqaNone2 -p hello -b {broker} -i 1"),
    Case("queryMsgById -i {offset_id} -t MqaTopic"),
    Case("queryMsgById -i {unique_key} -t MqaTopic"),
    Case("queryMsgByUniqueKey -i {unique_key} -t MqaTopic", until="Message ID"),
    Case("queryMsgByUniqueKey -i 7F0000010000000000000000DEADBEEF -t MqaTopic"),
    Case("queryMsgByKey -t MqaTopic -k MqaKey1", until="[0-9A-F]{{32}}"),
    Case("queryMsgByKey -t MqaTopic -k NoSuchKey"),
    Case("queryMsgByOffset -t MqaTopic -b {broker} -i 0 -o 0"),
    Case("queryMsgByOffset -t MqaTopic -b {broker} -i 0 -o 999"),
    Case("queryMsgTraceById -i {unique_key} -t RMQ_SYS_TRACE_TOPIC"),
    Case("printMsg -t MqaTopic -d true", sorted=True),
    Case("printMsg -t MqaTopic -s TagB", sorted=True),
    Case("printMsgByQueue -t MqaTopic -a {broker} -i 1 -p true -d true -f true"),
    Case("consumeMessage -t MqaTopic -b {broker} -i 0 -o 0 -c 2"),
    Case("consumeMessage -t MqaTopic -b {broker} -i 7 -o 0 -c 2"),
    Case("checkMsgSendRT -t MqaTopic -a 3 -s 16", numbers=False),
    Case("sendMsgStatus -b {broker} -s 16 -c 2", numbers=False),
    Case("clusterRT -a 2 -s 16 -i 30", numbers=False, limit_ms=_ENDLESS_MS, until="{cluster} +{broker}"),
    Case("queryCq -b {address} -t MqaTopic -q 0 -i 0 -c 2", numbers=False),
    Case(
        "queryCq -b {address} -t MqaTopic -q 0 -i 99 -c 2", differs="the bounds are told, so that mqadmin does not fail"
    ),
    Case("queryCq -b {address} -t MqaTopic -q 9 -i 0 -c 2"),
    Case("dumpCompactionLog -f {work}/none"),
    Case("dumpCompactionLog"),
    # groups
    Case("updateSubGroup -c {cluster} -g MqaGroup -r 7 -q 2"),
    Case(
        "updateSubGroup -b {address} -g MqaGroup -r 5 -s false --attributes +x=1",
        differs="the remark is the sentence alone, not a stack trace's first line",
    ),
    Case("updateSubGroup -b {address} -g MqaGroup -r 5 -s true"),
    Case("updateSubGroup -b {address} -g bad.group", differs="a name that no client may use is refused"),
    Case("updateSubGroupList -b {address} -f {work}/groups.json"),
    Case("getConsumerConfig -g MqaGroup"),
    Case("getConsumerConfig -g MqaNone"),
    Case("setConsumeMode -b {address} -t MqaListA -g MqaListGroup -m POP -q 3"),
    Case("setConsumeMode -b {address} -t MqaListA -g MqaListGroup -m PULL"),
    Case("setConsumeMode -b {address} -t MqaListA -g MqaListGroup -m NONE"),
    Case("!push MqaGroup MqaTopic"),
    Case("consumerProgress -g MqaGroup", numbers=False, until=_CONSUMED, only=_NO_RETRIES),
    Case("consumerProgress -g MqaGroup -s true", numbers=False, until=_CONSUMED, only=_NO_RETRIES),
    Case("consumerProgress -g MqaGroup -t MqaTopic", numbers=False),
    Case("consumerProgress -g MqaNone"),
    Case("consumerProgress", only="#Group|MqaGroup", numbers=False),
    Case("consumerConnection -g MqaGroup", numbers=False),
    Case("consumerConnection -g MqaGroup -b {address}", numbers=False),
    Case("consumerConnection -g MqaNone"),
    Case("consumerStatus -g MqaGroup", numbers=False),
    Case("consumerStatus -g MqaNone"),
    Case("consumerStatus -g MqaGroup -i NoSuchClient"),
    Case("producerConnection -g MqaProducers -t MqaTopic", numbers=False),
    Case("producerConnection -g MqaNone -t MqaTopic"),
    Case("producer -b {address}", only="MqaProducers", numbers=False),
    Case("brokerConsumeStats -b {address}", only="#Topic|MqaTopic", numbers=False),
    Case("statsAll -t MqaTopic", numbers=False, only="#|MqaGroup|NO_CONSUMER"),
    Case("statsAll -t MqaListA", numbers=False),
    Case("resetOffsetByTime -g MqaGroup -t MqaTopic -s 0"),
    Case("resetOffsetByTime -g MqaGroup -t MqaTopic -s now -b {address} -q 0 -o 1"),
    Case("resetOffsetByTime -g MqaGroup -t MqaTopic -s now -b {address} -q 0 -o 999"),
    Case("resetOffsetByTime -g MqaNone -t MqaTopic -s now"),
    Case("resetOffsetByTime -g MqaGroup -t MqaNone -s now"),
    Case("skipAccumulatedMessage -g MqaGroup -t MqaTopic"),
    Case("cloneGroupOffset -s MqaGroup -d MqaListGroup -t MqaTopic -o true"),
    Case("cloneGroupOffset -s MqaNone -d MqaListGroup -t MqaTopic -o true"),
    Case("startMonitoring", limit_ms=_ENDLESS_MS),
    # brokers
    Case("clusterList", numbers=False, in_raft=_FOLLOWERS, sorted=True),
    Case("clusterList -m", numbers=False, in_raft=_FOLLOWERS),
    Case("clusterList -c NoSuchCluster"),
    Case("brokerStatus -b {address}", only="^(brokerVersionDesc|brokerActive)"),
    Case("brokerStatus -b 127.0.0.1:1"),
    Case("getBrokerConfig -b {address}", only="^(brokerName|brokerClusterName|listenPort|fileReservedTime|traceOn) "),
    Case(
        "getBrokerConfig -c {cluster}",
        only="^(brokerName|brokerClusterName) |=====",
        in_raft=_FOLLOWERS,
        sorted=True,
    ),
    Case("updateBrokerConfig -b {address} -k transactionCheckMax -v 14"),
    Case("updateBrokerConfig -c {cluster} -k transactionCheckMax -v 15"),
    Case("updateBrokerConfig -b {address} -k brokerConfigPath -v /tmp/x"),
    Case(
        "updateBrokerConfig -b {address} -k noSuchKey -v 1", differs="a key that nobody knows is refused, not ignored"
    ),
    Case("haStatus -b {address}", numbers=False, in_raft="it has no slaves, as RocketMQ with DLedger"),
    Case("getBrokerEpoch -b {broker}", in_raft="its members tell the terms of their logs", sorted=True),
    Case("resetMasterFlushOffset -b {address} -o 0"),
    Case("addBroker -c {address} -b /tmp/broker.conf"),
    Case("removeBroker -c {address} -b {cluster}:{broker}:1"),
    Case("cleanExpiredCQ -b {address}"),
    Case("cleanExpiredCQ -c {cluster}"),
    Case("deleteExpiredCommitLog -b {address}"),
    Case("cleanUnusedTopic -b {address}"),
    Case("cleanUnusedTopic -c {cluster}"),
    Case("getColdDataFlowCtrInfo -b {address}", numbers=False),
    Case("updateColdDataFlowCtrGroupConfig -b {address} -g MqaGroup -v 1048576"),
    Case("getColdDataFlowCtrInfo -b {address}", numbers=False),
    Case("removeColdDataFlowCtrGroupConfig -b {address} -g MqaGroup"),
    Case("removeColdDataFlowCtrGroupConfig -c {cluster} -g MqaNone"),
    Case("setCommitLogReadAheadMode -b {address} -m 1"),
    Case("setCommitLogReadAheadMode -b {address} -m 0", in_raft="its log is never read ahead"),
    Case("setCommitLogReadAheadMode -b {address} -m 7"),
    Case("exportMetadata -c {cluster} -t -f {work}/export"),
    Case("exportMetadata -c {cluster} -g -f {work}/export"),
    Case("exportMetadata -b {address} -t -f {work}/export"),
    Case("exportConfigs -c {cluster} -f {work}/export"),
    Case("exportMetrics -c {cluster} -f {work}/export"),
    Case("exportMetadataInRocksDB -p {work}/none -t topics"),
    Case("exportPopRecord -b {address} -d true"),
    Case("rocksDBConfigToJson -b {address} -t topics"),
    Case("checkRocksdbCqWriteProgress -c {cluster} -n {namesrv} -t MqaTopic", differs=_OURS_REFUSES),
    # users and policies
    Case("createUser -b {address} -u MqaUser -p MqaSecret -t Normal"),
    Case("createUser -c {cluster} -u MqaOther -p MqaSecret -t Normal", in_raft=_FOLLOWERS, sorted=True),
    Case(
        "createUser -b {address} -u MqaUser -p MqaSecret -t Normal",
        differs="the same request within ten seconds is one that mqadmin sends to each member of a group",
    ),
    Case("updateUser -b {address} -u MqaUser -s disable"),
    Case("updateUser -b {address} -u MqaNone -p MqaSecret"),
    Case("getUser -b {address} -u MqaUser", differs=SECRET),
    Case("getUser -b {address} -u MqaNone"),
    Case("listUser -b {address}", sorted=True, differs=SECRET, only="^(#|Mqa)"),
    Case("listUser -b {address} -f MqaO", differs=SECRET),
    Case("copyUser -f {address} -t {address} -u MqaUser,MqaOther"),
    Case("createAcl -b {address} -s User:MqaUser -r Topic:MqaTopic,Group:MqaGroup -a Pub,Sub -d Allow -i 127.0.0.1"),
    Case("createAcl -b {address} -s User:MqaNone -r Topic:MqaTopic -a Pub -d Allow"),
    Case("createAcl -b {address} -s User:MqaUser -r Nothing:MqaTopic -a Pub -d Allow"),
    Case("updateAcl -b {address} -s User:MqaUser -r Topic:MqaTopic -a Pub -d Deny"),
    Case("getAcl -b {address} -s User:MqaUser"),
    Case("getAcl -b {address} -s User:MqaOther"),
    Case("listAcl -b {address}"),
    Case("listAcl -b {address} -s MqaUser -r MqaTopic"),
    Case("copyAcl -f {address} -t {address} -s User:MqaUser"),
    Case("deleteAcl -b {address} -s User:MqaUser -r Topic:MqaTopic"),
    Case("deleteAcl -b {address} -s User:MqaUser"),
    Case("deleteUser -b {address} -u MqaUser"),
    Case("deleteUser -c {cluster} -u MqaOther", in_raft=_FOLLOWERS, sorted=True),
    Case("deleteUser -b {address} -u MqaNone"),
    # nameservers
    Case("updateKvConfig -s MqaSpace -k MqaKey -v MqaValue"),
    Case("deleteKvConfig -s MqaSpace -k MqaKey"),
    Case("wipeWritePerm -b {broker}", numbers=False),
    Case("addWritePerm -b {broker}", numbers=False),
    Case("getNamesrvConfig", only="^(listenPort|orderMessageEnable|clusterTest) "),
    Case("updateNamesrvConfig -k enableTopicList -v true"),
    Case("updateNamesrvConfig -k configStorePath -v /tmp/x"),
    # controllers
    Case("getSyncStateSet -a {address} -b {broker}", differs=_NO_CONTROLLER),
    Case("getControllerMetaData -a {address}", differs=_NO_CONTROLLER),
    Case("getControllerConfig -a {address}", differs=_NO_CONTROLLER),
    Case("updateControllerConfig -a {address} -k notifyBrokerRoleChanged -v true", differs=_NO_CONTROLLER),
    Case("electMaster -a {address} -b 1 -bn {broker} -c {cluster}", differs=_NO_CONTROLLER),
    Case("cleanBrokerMetadata -a {address} -b 1 -bn {broker} -c {cluster}", differs=_NO_CONTROLLER),
    # the end
    Case("deleteSubGroup -b {address} -g MqaListGroup -r true"),
    Case("deleteSubGroup -c {cluster} -g MqaNone"),
    Case("deleteTopic -c {cluster} -t MqaListB"),
    Case("deleteTopic -c {cluster} -t MqaNone"),
    Case("noSuchCommand -b {address}"),
)
