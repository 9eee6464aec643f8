"""Was anything lost? python examples/pipeline/audit_after_failover.py HISTORY STORE STORE STORE; exit code 1: yes.

HISTORY has what producers were told, as JSON Lines (ledgermq/history.py); the stores are those of a Raft group that is
stopped. Prints each finding.
"""

import sys

from ledgermq.spark.audit import audit
from ledgermq.spark.session import make_session


def main(history: str, *stores: str) -> int:
    found = audit(make_session("audit"), stores, [history])
    for row in found.findings.orderBy("kind", "topic", "queue_id", "queue_offset").toLocalIterator():
        print(f"{row.kind}: {row.topic}/{row.queue_id} @{row.queue_offset} key {row.key}: {row.detail}")
    print(f"{found.acknowledged:,} acknowledged, {sum(found.counts.values()):,} findings")
    return 0 if found.is_sound else 1


if len(sys.argv) < 3:
    print(__doc__, file=sys.stderr)
    sys.exit(2)
sys.exit(main(*sys.argv[1:]))
