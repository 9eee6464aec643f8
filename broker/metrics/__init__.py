"""The metrics page of a broker.

    broker.counting (plain ints, added to on the hot path) -- totals --.
    tables, queues, offsets, files --------------- gauges, groups -----+--> page: rows are gathered in slices on the
    broker_metrics (a registry), replication: names of our own --------'         loop, and written in a thread

The series and their meaning are in docs/metrics.md.
"""
