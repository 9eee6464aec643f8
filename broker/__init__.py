"""The broker: serves the requests of clients and tools. Of the log it knows only the protocol `store.replicated_log`.

    log_follower             makes the parts on a recovered store, before the first record is dispatched
      '- parts               makes the subsystems and passes events on to them, in one order
           |- server         request -> check of permissions (auth.guard) -> the subsystem that serves its code
           |- subsystem      the base class of all subsystems: request codes, periodic work, reactions to events
           |- passing        requests that only the leader serves, at a node that follows
           |- leadership     starts and stops what only the leader does
           '- context        what all subsystems share
                |- append    writes to the log: target -> drafts -> appender -> answers
                |- state     the replicated tables: metadata, offsets -> tables -> files (config/*.json)
                |- counting  counters
                |- role      whether this node may write; forwarding: requests that only the leader can serve
                '- config    settings and their keys (with config_kinds, auth_settings)

Beside them: header_forms (which fields a request header must have), timers (periodic calls), metrics (the page of
/metrics), sql (SQL92 filters, used by groups and pull).

Subsystems, each with its `subsystem.py`: admin, auth, counting, delay, groups, passing, pop, pull, send, state,
transactions.
Reading order: `server`, `send.processor`, `append.appender`, `pull.processor`, `state.tables`, `leadership`,
`parts`.
"""
