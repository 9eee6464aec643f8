"""Raft as a state machine of values: inputs go in, effects come out. No clock, randomness, files or sockets.

    messages  roles  settings  errors  ready      the messages, the roles, the effects that the core asks for
    terms  state                                  the terms of the log's entries; the state that all roles share
    voting  ballot  election_clock                the vote rule, counting votes, when to start an election
    follower  progress  leader  handover          the roles, and what a leader knows of each follower
    member  raft                                  changes of role; the inputs and outputs of the machine
    invariants                                    checks for the tests and the simulation
Read in that order. `dledger.node` carries out what `raft` returns; `tests/dledger/core/testdata` has recorded examples.
"""
