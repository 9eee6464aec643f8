"""Administration: topics, groups, offsets, messages, brokers, nameservers, users. Against any RocketMQ cluster.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queue_count=8)

Programs use one class; each subject has a file: `topics`, `groups`, `offsets`, `messages`, `servers`
(brokers and nameservers), `users`. All of them stand on `base`; the values that they return are in `results`.
"""

from ledgermq.client.admin.groups import GroupAdmin
from ledgermq.client.admin.messages import MessageAdmin
from ledgermq.client.admin.offsets import OffsetAdmin
from ledgermq.client.admin.servers import ServerAdmin
from ledgermq.client.admin.topics import TopicAdmin
from ledgermq.client.admin.users import UserAdmin


class Admin(
    TopicAdmin,
    GroupAdmin,
    OffsetAdmin,
    MessageAdmin,
    ServerAdmin,
    UserAdmin,
):
    """Inspects and changes a cluster.

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queue_count=8)

    Every method retries, follows leaders, and raises LedgerMQError when it has not succeeded after `deadline_s`
    seconds. Requests about a topic go to the leaders of its route, requests about a broker to the leader of its name,
    and requests about a cluster to all of its leaders.
    """
