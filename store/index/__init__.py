"""Index of messages by key, in RocketMQ's index files.

Read in this order: `ledgermq.message.index_unit` (the bytes), `store.record_tails` (topics and properties of thousands
of records at once), `batch` (records -> keys), `index_file` (one file), `file_set` (the folder), `recovery` (what of it
can be trusted), `builder` (the thread that owns it), `service` (the cursor over the log, and queries).

    log --slices on the loop--> KeyBatch --its thread--> IndexFiles <--its thread-- query
"""
