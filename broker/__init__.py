"""The broker: what clients ask of it, on a log of which it knows the seam only (`node.log_choice` chooses one).

    node.broker_assembly   what starts in which order, and how it ends
      |- log_follower                 what stands on the log before the first record goes by
      '- parts                        everything else, made and tied together
           |- server, request_table, auth/    a request -> may it? -> who serves it
           |- in     send, send_batches, send_back, request_reply -> appender -> send_answers
           |         (send_target: whether it is taken, and where it goes)
           |- out    pull, long_polling, subscription, sql/, filter_turns, cold_data, query;    pop/
           |- later  delay, timer_*, transaction_*, all through timer_deliveries
           |- state  metadata, offsets -> state_log -> the log -> state     state_files: RocketMQ's config/*.json
           |- who    clients, locks, client_requests
           |- tools  topic_, group_, broker_, offset_, replica_requests, consumer_admin, offset_moves, cleaning
           |- role, leadership, registration    who leads, what begins and ends with it, who is told
           '- metrics/

Reading order: `server`, `send`, `appender`, `pull`, `state`, `state_log`, `leadership`, `parts`, `assembly`.
"""
