"""What /metrics shows of a broker.

    hot path -> arrivals, calls, events (plain ints) --.
    tables, queues, offsets, files ---------------------+--> page: gathered in slices on the loop, written in a thread
    own (what only we have: a registry) ---------------'

Reading order: `families` of telemetry, `settings`, `tallies`, `arrivals`, `calls`, `events`; then what reads them at a
scrape: `standing`, `counted`, `groups`, `exporter`, `runtime`, `own`; `page` puts them together. Which series there
are and what they mean is in docs/metrics.md.
"""
