"""A well-formed body for each request that has one."""

import json
import struct
from typing import Any, Final

TOPIC: Final = "FuzzTopic"
GROUP: Final = "FuzzGroup"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def batch_entry(body: bytes, properties: bytes = b"TAGS\x01a\x02") -> bytes:
    """One message of a batch body."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties


_QUEUE: Final = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}
_SUBSCRIPTION: Final = {
    "classFilterMode": False, "codeSet": [97], "expressionType": "TAG", "subString": "a", "subVersion": 1,
    "tagsSet": ["a"], "topic": TOPIC,
}  # fmt: skip
_TOPIC_CONFIG: Final = {
    "attributes": {}, "order": False, "perm": 6, "readQueueNums": 2, "topicFilterType": "SINGLE_TAG",
    "topicName": "FuzzNew", "topicSysFlag": 0, "writeQueueNums": 2,
}  # fmt: skip
_GROUP_CONFIG: Final = {
    "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupName": "FuzzNew",
    "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16, "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip
_CONSUMER: Final = {
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": GROUP,
    "messageModel": "CLUSTERING", "subscriptionDataSet": [_SUBSCRIPTION], "unitMode": False,
}  # fmt: skip
_VERSION: Final = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
_REGISTER: Final = {
    "filterServerList": [],
    "topicConfigSerializeWrapper": {
        "dataVersion": _VERSION,
        "mappingDataVersion": _VERSION,
        "topicConfigTable": {
            TOPIC: {**_TOPIC_CONFIG, "topicName": TOPIC},
            "FuzzOther": {**_TOPIC_CONFIG, "topicName": "FuzzOther"},
        },
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    },
}
_LOCK: Final = {"clientId": "fuzz@1", "consumerGroup": GROUP, "mqSet": [_QUEUE], "onlyThisBroker": False}
_USER: Final = {"username": "fuzz", "password": "secret", "userType": "Normal", "userStatus": "enable"}
_ACL: Final = {
    "subject": "User:fuzz",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {"resource": "Topic:*", "actions": ["Pub"], "sourceIps": ["192.0.2.0/24"], "decision": "Allow"}
            ],
        }
    ],
}
_ACKS: Final = {
    "brokerName": "broker-a",
    "acks": [{"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "rq": 0, "q": 0, "pt": 1700000000000, "it": 60000,
              "b": "AQ=="}],
}  # fmt: skip

BODIES: Final[dict[int, bytes]] = {
    10: b"hello",
    18: _json({"topicConfigList": [_TOPIC_CONFIG]}),
    25: b"longPollingEnable=true\n",
    34: _json({
        "clientID": "fuzz@1", "consumerDataSet": [_CONSUMER], "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": "FuzzProducer"}], "withoutSub": False,
    }),
    41: _json(_LOCK),
    42: _json(_LOCK),
    46: _json({"clientId": "fuzz@1", "group": GROUP, "subscriptionData": {**_SUBSCRIPTION, "subString": "a = 1 OR b",
                                                                          "expressionType": "SQL92"}}),
    103: _json(_REGISTER),
    200: _json(_GROUP_CONFIG),
    217: _json({"brokerDatas": [], "queueDatas": [{"brokerName": "fuzz-broker", "perm": 6, "readQueueNums": 1,
                                                   "topicSysFlag": 0, "writeQueueNums": 1}]}),
    225: _json({"groupConfigList": [_GROUP_CONFIG]}),
    310: b"hello",
    318: b"orderMessageEnable=false\n",
    320: batch_entry(b"one") + batch_entry(b"two"),
    322: _json(_VERSION),
    324: b"reply",
    325: b"reply",
    400: _json({"clientId": "fuzz@1", "consumerGroup": GROUP, "messageModel": "CLUSTERING", "strategyName": "AVG",
                "topic": TOPIC}),
    401: _json({"consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, "topic": TOPIC}),
    2001: b"FuzzGroup=10\n",
    2002: b"FuzzGroup",
    3001: _json(_USER),
    3002: _json(_USER),
    3006: _json(_ACL),
    3007: _json(_ACL),
    200151: _json(_ACKS),
}  # fmt: skip
"""By request code."""
