"""Compaction of a topic by key: of each key the last message stays, and a message without a body removes its key.

    dispatched messages --copy--> segment, segment, [segment being written]      `compaction_log`, `segment`
                                     '------ compact, off the loop ------'       `compactor`
                                     '------ replace, crash-safe --------'       `segment_replacement`
    pull --> copied, compacted segments --> what is not copied yet: the queue itself

Files and folders are RocketMQ's:

    <root>/compaction/position-checkpoint                              up to where each queue is compacted
    <root>/compaction/compactionLog/<topic>/<queue id>/<20 digits>     records, their physical offset the one in here
    <root>/compaction/compactionCq/<topic>/<queue id>/<20 digits>      units of 46 bytes, a file beside each log file

Read `compaction_store` first. Each node compacts its own copy; nothing here is replicated.

Source: apache/rocketmq `store/.../kv/*.java` (5.3.3).
"""
