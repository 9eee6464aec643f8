"""The controllers' agreement on one order of commands: PySyncObj's Raft, with parts of it replaced.

PySyncObj 0.3.17 executes code in what it unpickles, flushes nothing, loses entries if it dies between two steps of a
compaction, lets a wiped member vote, deletes acknowledged entries when a message comes twice, and bounds no memory of
connections. Therefore these parts are replaced:

    its journal and its files    `journal`, `snapshot_file`: checksums, fdatasync before any answer, atomic trimming
    its connections              `transport`: encrypted always, bounded; a member that forgot its votes does not vote
    its messages                 `appends`: a follower deletes only what conflicts, and commits only what it compared
    its thread                   `quorum`: one that stops the process when something fails

Its Raft remains. Reading order: snapshot_file, journal, appends, transport, quorum.
"""
