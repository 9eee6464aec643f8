"""Scores of the conformance suite: it runs on clusters of ours, and the real broker's score is the measure.

    runs      what is run: clusters, client versions, groups of cases; the list for CI and the whole
      |
    ours, real     a cluster of LedgerMQ, or of Apache RocketMQ 5.3.3, up for a block
      |
    suite     tests/interop/run on it -> outcome of every case
      |
    table     beside real.tsv, what the real broker scored: by group, and what is owed

Read in this order: `outcomes`, `reference`, `table`, `runs`, `ours`, `real`, `__main__`.
"""
