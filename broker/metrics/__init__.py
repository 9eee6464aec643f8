"""What /metrics shows of a broker.

    broker.counting (plain ints, added to on the hot path) -- totals --.
    tables, queues, offsets, files --------------- gauges, groups -----+--> page: rows are gathered in slices on the
    broker_metrics (a registry), replication: names of our own --------'         loop, and written in a thread

Which series there are and what they mean is in docs/metrics.md.
"""
