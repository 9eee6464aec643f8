"""The Raft-replicated commit log: the Raft core without I/O, its log on the store's mapped files, driver, transport.

    broker, store ---- raft_log (the seam) -- proposer, log_events, node_timers, background, peers/{peer_book,inbox}
                            |
                          node  <->  core/          decides; no clock, no file, no socket
                            | ports (protocols of the log, the hard state and the transport)
              ______________|______________
             |              |              |
       log/entry_log   log/hard_state   peers/transport
    writer, integrity, reader            link, hello
    entry, entry_batches                 frame_stream, wire
             |
       log/raft_files: identity, membership, opening (recovery, unit_index, start_file, commit_checkpoint)

Reading order: ports, core (it has a map), node; in log entry, entry_log, opening, recovery; in peers wire, transport;
raft_log.
"""
