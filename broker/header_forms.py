"""Fields that request headers must have: upstream's names and types, with the code of a missing field if it is not 1.

`SendProcessor` reads the header of a send itself, once per combination of its numbers: that is the hot path.

Source: apache/rocketmq `remoting/.../protocol/header/*RequestHeader.java` (5.3); codes as the real broker answers.
"""

from ledgermq.remoting.codec.header_form import forms

FORMS = forms("""
11 consumerGroup topic queueId:i queueOffset:l maxMsgNums:i sysFlag:i commitOffset:l~
  suspendTimeoutMillis:l~ subVersion:l~ maxMsgBytes:i? requestSource:i?
12 topic@22 key@22 maxNum:n beginTimestamp:l endTimestamp:l
14 consumerGroup@22 topic queueId:i
15 consumerGroup@26 topic queueId:i@29 commitOffset:l@29
17 topic readQueueNums:i writeQueueNums:i perm:i topicFilterType topicSysFlag:i?
29 topic queueId:i timestamp:l
30 topic queueId:i
31 topic queueId:i
32 topic queueId:i
33 offset:l
36 offset:l group delayLevel:i maxReconsumeTimes:i?
37 producerGroup tranStateTableOffset:l commitLogOffset:l commitOrRollback:i msgId
38 consumerGroup
202 topic
203 consumerGroup
204 producerGroup
207 groupName
208 consumerGroup
215 topic@29
222 group@26 topic queueId:i? offset:l? timestamp:l?
223 topic group
300 topic
303 topic
307 consumerGroup clientId
309 consumerGroup clientId
315 statsName statsKey
321 topic queueId:i? index:l? count:i?
345 group
351 topic
352 group
353 group topic
355 configType
361 consumerGroup topic queueId:i queueOffset:l maxMsgNums:i sysFlag:i commitOffset:l~
  suspendTimeoutMillis:l~ subVersion:l~ maxMsgBytes:i?
370 topic@16 recallHandle@16
3003 username@16
3008 subject@16
3009 subject
200050 consumerGroup topic queueId:i* maxMsgNums:n* invisibleTime:l* pollTime:l* bornTime:l@210 initMode:i*
200051 topic queueId:i extraInfo offset:l
200052 consumerGroup topic queueId:i* maxMsgNums:n*
200053 topic queueId:i extraInfo offset:l invisibleTime:l
200054 consumerGroup topic queueId:i* pollTime:l* bornTime:l*
200055 consumerGroup topic queueId:i*
""")
