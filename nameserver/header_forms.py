"""The fields that request headers must have: RocketMQ's names and types, and the code of a missing one if not 1.

Source: apache/rocketmq `remoting/.../protocol/header/namesrv/*RequestHeader.java` (5.3); codes as the real one answers.
"""

from ledgermq.remoting.codec.header_form import forms

FORMS = forms("""
100 namespace key
101 namespace@22 key@22
103 brokerName brokerAddr clusterName brokerId:l heartbeatTimeoutMillis:l? bodyCrc32:l?
104 brokerId:l?
105 topic@17
219 namespace@22
322 brokerAddr clusterName
904 clusterName brokerAddr brokerId:l?
""")
