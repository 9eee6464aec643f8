"""Raft as values in, values out. No clock, no randomness, no files, no sockets.

    messages  roles  settings  errors  ready      what is said, what a node is, what it wants done
    terms  state                                  the log's terms; what all roles share
    voting  ballot  election_clock                may I vote, who won, when to ask
    follower  progress  leader  handover          the roles and what a leader knows of the others
    member  raft                                  changes of role; the machine's inputs and output
    invariants                                    what must hold, for the tests and the simulation
Read in that order. `dledger.node` carries out what `raft` returns; `tests/dledger/core/testdata` shows it at work.
"""
