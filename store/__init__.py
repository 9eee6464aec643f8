"""The message store on memory-mapped files. It knows neither sockets nor how a log is replicated.

    opening                opens and closes a store in the one safe order; `OpenStore`
      |- store_config        settings of the store and their keys in broker.conf
      |- directory/          small files: who owns the directory, whether the last stop was clean, what is durable
      |- cleaning/           which old files are deleted, and when a disk counts as full
      |- compaction/         topics of which only the last message of each key is kept
      |- recovery/           the queues after a stop; checkpointer: makes them durable
      '- message_store       puts messages, dispatches confirmed records to the queues and to its listeners
           |- message_reader   reads messages by queue, by offset and by time
           |- store_listener   the protocol of a listener: index, compaction, cleaning, the broker
           |- queues/          queue_table - consume_queue - queue_files - queue_file; dispatch: from record to unit
           |    '- queue_kinds, queue_entries, batch_queue, ext_queue    queues that are not plain
           '- replicated_log   the protocol of every log
                '- log/        commit_log: the standalone log - local_log: its bytes - placing, flusher, committer
                     '- files/   mapped_file_queue - mapped_file - file_mapping - pages, disk; allocator
                                 (the Raft log stands on these files, too)
    index/  finds messages by key         timer/  which message is due when         time_slice  bounds work on the loop

Read first: `replicated_log`, `mapped_file`, `local_log`, `commit_log`, `consume_queue`, `message_store`, `opening`.
The files are RocketMQ's: `commitlog/`, `consumequeue/<topic>/<queue id>/`, `checkpoint`, `abort`, `lock`, `config/`.
"""
