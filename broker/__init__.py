"""The broker: what clients ask of it, on a log of which it knows the protocol only (`store.replicated_log`).

    log_follower             makes the parts on a recovered store, before the first record is dispatched
      '- parts               the subsystems, in the order in which they hear of what happens
           |- server         a request -> may it (auth.guard)? -> the subsystem that serves its code
           |- subsystem      what each subsystem offers
           |- leadership     begins and ends what only the leader does
           '- context        what all subsystems stand on
                |- append    into the log: target -> drafts -> appender -> answers; state_log
                |- state     tables that the log carries: metadata, offsets -> tables -> files (config/*.json)
                |- counting  what is counted
                '- role, forwarding    who may write; requests that only the leader can serve

Subsystems: admin, auth, counting, delay, groups, pop, pull, send, state, transactions, each with its `subsystem.py`.
Reading order: `server`, `send.processor`, `append.appender`, `pull.processor`, `state.tables`, `append.state_log`,
`leadership`, `parts`.
"""
