"""Every request that a broker or nameserver of 5.3.3 can be asked: its header fields, and one that is well-formed.

Names and types of the fields are those of upstream's `remoting/.../protocol/header/*RequestHeader.java`.
"""

import re
import time
from dataclasses import dataclass
from typing import Final

from tests.fuzz.bodies import BODIES

_TABLE: Final = """
B 10 producerGroup topic defaultTopic defaultTopicQueueNums:i queueId:i sysFlag:i bornTimestamp:l flag:i
  properties? reconsumeTimes:i? unitMode:b? batch:b? maxReconsumeTimes:i?
B 11 consumerGroup topic queueId:i queueOffset:l maxMsgNums:i sysFlag:i=4 commitOffset:l suspendTimeoutMillis:l
  subscription? subVersion:l expressionType? maxMsgBytes:i? requestSource:i? proxyFrowardClientId?
B 12 topic key maxNum:i beginTimestamp:l endTimestamp:l
B 14 consumerGroup topic queueId:i setZeroIfNotFound:b?
B 15 consumerGroup topic queueId:i commitOffset:l
B 17 topic:new defaultTopic readQueueNums:i writeQueueNums:i perm:i topicFilterType topicSysFlag:i? order:b
  attributes?
B 18
B 21
B 25
B 26
B 28
B 29 topic queueId:i timestamp:l boundaryType?
B 30 topic queueId:i committed:b?
B 31 topic queueId:i
B 32 topic queueId:i
B 33 offset:l
B 34
B 35 clientID producerGroup? consumerGroup?
B 36 offset:l group delayLevel:i originMsgId? originTopic? unitMode:b? maxReconsumeTimes:i?
B 37 producerGroup tranStateTableOffset:l commitLogOffset:l commitOrRollback:i fromTransactionCheck:b? msgId
  transactionId?
B 38 consumerGroup
B 41
B 42
B 43
B 45
B 46
B 60
B 61
B 200
B 201
B 202 topic
B 203 consumerGroup
B 204 producerGroup
B 207 groupName:new cleanOffset:b?
B 208 consumerGroup topic?
B 215 topic:gone
B 222 group topic queueId:i? offset:l? timestamp:l isForce:b
B 223 topic group clientAddr?
B 225
B 300 topic
B 303 topic group
B 305
B 306
B 307 consumerGroup clientId jstackEnable:b?
B 308 filterGroups? compareGroup topic
B 309 consumerGroup clientId msgId? topic?
B 310 a b c d:i e:i f:i g:l h:i i? j:i? k:b? l:i? m:b? n?
B 314 srcGroup destGroup topic? offline:b?
B 315 statsName statsKey
B 316
B 317 isOrder:b?
B 320 a b c d:i e:i f:i g:l h:i i? j:i? k:b? l:i? m:b n?
B 321 topic queueId:i index:l count:i consumerGroup?
B 323 topic? msgId
B 324 producerGroup topic defaultTopic defaultTopicQueueNums:i queueId:i sysFlag:i bornTimestamp:l flag:i
  properties? reconsumeTimes:i?
B 325 a b c d:i e:i f:i g:l h:i i? j:i? k:b? l:i? m:b? n?
B 328
B 329
B 343 group
B 345 group topic?
B 351 topic
B 352 group
B 353 group topic readable:b?
B 355 configType
B 361 consumerGroup topic queueId:i queueOffset:l maxMsgNums:i sysFlag:i=4 commitOffset:l suspendTimeoutMillis:l
  subscription? subVersion:l expressionType? maxMsgBytes:i?
B 370 producerGroup? topic recallHandle
B 400
B 401
B 402
B 513 topic:new defaultTopic readQueueNums:i writeQueueNums:i perm:i topicFilterType topicSysFlag:i? order:b
  force:b?
B 905 minBrokerId:l? brokerName? minBrokerAddr?
B 906 masterHaAddress? masterFlushOffset:l? masterAddress?
B 907
B 908 masterFlushOffset:l?
B 1007
B 2001
B 2002
B 2003
B 2004 READ_AHEAD_MODE:i=1
B 3001 username:new
B 3002 username
B 3003 username:gone
B 3004 username
B 3005 filter?
B 3006 subject
B 3007 subject
B 3008 subject:gone policyType? resource?
B 3009 subject
B 3010 subjectFilter? resourceFilter?
B 200050 consumerGroup topic queueId:i maxMsgNums:i invisibleTime:l pollTime:l bornTime:l initMode:i expType?
  exp? order:b? attemptId?
B 200051 consumerGroup topic queueId:i extraInfo offset:l
B 200052 consumerGroup topic queueId:i maxMsgNums:i
B 200053 consumerGroup topic queueId:i extraInfo offset:l invisibleTime:l
B 200054 consumerGroup topic queueId:i pollTime:l bornTime:l order:b? attemptId?
B 200055 consumerGroup topic queueId:i
B 200056
B 200151
N 100 namespace key value
N 101 namespace key
N 102 namespace key
N 103 brokerName brokerAddr clusterName haServerAddr brokerId:l heartbeatTimeoutMillis:l? enableActingMaster:b?
  compressed:b? bodyCrc32:i?
N 104 brokerName:gone brokerAddr clusterName brokerId:l
N 105 topic acceptStandardJsonOnly:b?
N 106
N 205 brokerName
N 206
N 216 topic:gone clusterName?
N 217 topic:new
N 219 namespace
N 224 cluster
N 304
N 311
N 312
N 313
N 318
N 319
N 322 brokerName brokerAddr clusterName brokerId:l
N 327 brokerName
N 901 clusterName brokerName
N 902
N 903 brokerName:gone brokerClusterName brokerId:l
N 904 clusterName brokerAddr brokerName brokerId:l? epoch:i? maxOffset:l? confirmOffset:l?
  heartbeatTimeoutMills:l? electionPriority:i?
"""

TOPIC: Final = "FuzzTopic"
GROUP: Final = "FuzzGroup"
NOW: Final = "now"
"""Stands for the present time in ms, which a request must be given when it is sent."""

_GOOD: Final = {
    "producerGroup": "FuzzProducer", "consumerGroup": GROUP, "topic": TOPIC, "defaultTopic": "TBW102", "group": GROUP,
    "defaultTopicQueueNums": "4", "bornTimestamp": "1700000000000", "properties": "TAGS\x01a\x02",
    "maxMsgNums": "8", "subscription": "*", "expressionType": "TAG", "key": "k1", "maxNum": "8",
    "endTimestamp": "4000000000000", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "boundaryType": "LOWER", "clientID": "fuzz@1", "clientId": "fuzz@1",
    "clientAddr": "fuzz@1", "delayLevel": "1", "msgId": "7F00000100002A9F0000000000000000",
    "originMsgId": "7F00000100002A9F0000000000000000", "originTopic": TOPIC, "transactionId": "t1",
    "commitOrRollback": "8", "groupName": GROUP, "compareGroup": GROUP, "filterGroups": GROUP, "srcGroup": GROUP,
    "destGroup": "FuzzOther", "statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC, "count": "4",
    "recallHandle": "djEgRnV6elRvcGljIGJyb2tlci1hIDE3MDAwMDAwMDAwMDAgQUJDREVG", "a": "FuzzProducer", "b": TOPIC,
    "c": "TBW102", "d": "4", "g": "1700000000000", "i": "TAGS\x01a\x02", "n": "broker-a", "username": "fuzz",
    "subject": "User:fuzz", "invisibleTime": "60000", "bornTime": NOW, "exp": "*", "expType": "TAG",
    "attemptId": "a1", "extraInfo": "0 1700000000000 60000 0 0 broker-a 0 0", "namespace": "FUZZ", "value": "v",
    "brokerName": "fuzz-broker", "brokerAddr": "127.0.0.1:65000", "clusterName": "FuzzCluster",
    "haServerAddr": "127.0.0.1:65001", "heartbeatTimeoutMillis": "120000", "cluster": "FuzzCluster",
    "brokerClusterName": "FuzzCluster", "subVersion": "1", "requestSource": "0", "maxReconsumeTimes": "16",
    "l": "16", "maxMsgBytes": "65536", "minBrokerAddr": "127.0.0.1:65000", "masterHaAddress": "127.0.0.1:65001",
    "masterAddress": "127.0.0.1:65000", "policyType": "CUSTOM", "resource": "Topic:*", "isForce": "true",
    "proxyFrowardClientId": "p", "offline": "true", "isOrder": "false", "m": "false",
}  # fmt: skip
_ROLES: Final = {"new": "FuzzNew", "gone": "FuzzGone"}


@dataclass(frozen=True, slots=True)
class Field:
    """A header field: its name, its type (s text, i 32 bits, l 64 bits, b boolean), whether upstream demands it."""

    name: str
    type: str
    required: bool
    good: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a `server` (B broker, N nameserver) may be sent."""

    server: str
    code: int
    fields: tuple[Field, ...]
    body: bytes

    @property
    def good(self) -> dict[str, str]:
        """A whole well-formed header, of this moment."""
        now = str(time.time_ns() // 1_000_000)
        return {field.name: now if field.good == NOW else field.good for field in self.fields}


def _field(code: int, word: str) -> Field:
    word, _, own = word.partition("=")
    name, _, kind = word.removesuffix("?").partition(":")
    role = own or _ROLES.get(kind)
    kind = "s" if kind in ("", *_ROLES) else kind
    good = role or _GOOD.get(name) or {"s": "", "i": "0", "l": "0", "b": "false"}[kind]
    if code == 320 and name == "m":
        good = "true"
    return Field(name, kind, not word.endswith("?"), good)


def _request(line: str) -> Request:
    server, number, *words = line.split()
    code = int(number)
    return Request(server, code, tuple(_field(code, word) for word in words), BODIES.get(code, b""))


REQUESTS: Final = tuple(map(_request, re.sub(r"\n +", " ", _TABLE.strip()).splitlines()))
BY_CODE: Final = {(request.server, request.code): request for request in REQUESTS}
