"""A real cluster for tests of programs that use LedgerMQ: nodes as processes, killed, paused and cut off by the test.

    from ledgermq.testing import Cluster                      def test_orders(ledgermq_cluster):
    with Cluster() as cluster:                                    topic = ledgermq_cluster.topic()
        topic = cluster.topic()                                   ...
        cluster.kill("leader")                                    ledgermq_cluster.kill("leader")

It needs the server beside the client: `pip install 'ledgermq[testing]'`. The fixture `ledgermq_cluster` comes with the
package (`plugin.py`); `control.py` speaks to the process that runs the nodes.
"""

from ledgermq.testing.cluster import Cluster, Node
from ledgermq.testing.control import ClusterError

__all__ = ["Cluster", "ClusterError", "Node"]
