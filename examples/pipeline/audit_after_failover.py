"""Audit the logs after a failover: python examples/pipeline/audit_after_failover.py HISTORY STORE STORE STORE.

HISTORY has the producers' outcomes, as JSON Lines (ledgermq/history.py); the stores are those of a stopped Raft group.
Prints each finding; exit code 1 means that there are some.
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
