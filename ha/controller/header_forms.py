"""Forms of request headers: RocketMQ's names and types, with the code of a missing field where it is not 1.

Source: apache/rocketmq `remoting/.../protocol/header/controller/**/*RequestHeader.java`,
`remoting/.../protocol/header/namesrv/BrokerHeartbeatRequestHeader.java` (5.3).
"""

from ledgermq.remoting.codec.header_form import forms

FORMS = forms("""
904 clusterName brokerName brokerAddr brokerId:l? epoch:i? maxOffset:l? confirmOffset:l? heartbeatTimeoutMills:l?
 electionPriority:i?
1001 brokerName masterBrokerId:l masterEpoch:i
1002 clusterName brokerName brokerId:l designateElect
1003 clusterName brokerName brokerId:l brokerAddress
1004 brokerName
1011 brokerName
1012 clusterName brokerName
1013 clusterName brokerName appliedBrokerId:l registerCheckCode
""")
