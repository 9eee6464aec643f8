"""The Raft-replicated commit log: sans-I/O core, its log on the store's mapped files, driver, transport.

    broker, store ---- raft_log (the seam) ---- proposer, log_events, peer_inbox, peer_book, pulse, background
                            |
                          node  <->  core/          decides; no clock, no file, no socket
              ______________|______________
             |              |              |
         entry_log      hard_state     transport
    log_writer, log_care,              peer_link, hello
    log_reader, unit_index             frame_stream, wire
    entry_batches
             |
         raft_files: identity, lock, log_opening, log_recovery, log_start, committed

Reading order: ports, core (it has a map), node; entry, entry_log, log_opening, log_recovery; wire, transport; raft_log.
"""
