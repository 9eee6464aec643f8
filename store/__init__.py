"""The message store on memory-mapped files. It knows bytes and files; neither sockets nor roles.

    opening            the order of opening and closing; OpenStore
    store_config       what the store is told, with its keys of broker.conf
      |- store_directory   belonging, lock_file, abort_file, checkpoint: whose it is, how it was left, what is durable
      |- message_store     put, dispatch   - message_reader, queue_reader: get, look up, by time
      |    |- queue_table - consume_queue - queue_files - queue_file - queue_mapping
      |    |    '- queue_kinds, queue_entries - batch_queue, ext_queue      what is not a plain queue
      |    '- dispatch         record -> unit
      |- cleaning          old files, full disks: trim, queues, index      removal, trash: deleting in threads
      |- queue_recovery    queues from the log again - queue_trust, batch_fields, batch_tails
      |- checkpointer      queues durable, now and then
      '- commit_log        a ReplicatedLog without replicas: what is confirmed, when senders have their answer
           |- local_log    the bytes of the classic log - placing, recovery
           |- committer - transient_pool - pooled_file     preparation: pooled, warm      thresholds: when to flush
           '- flusher, mapped_file_queue - allocator, log_files, mappings, deleted_files
                '- mapped_file - file_mapping - pages, disk                 (the Raft log stands on these, too)

Read first: `replicated_log`, `mapped_file`, `local_log`, `commit_log`, `consume_queue`, `message_store`, `opening`.
The files are RocketMQ's: `commitlog/`, `consumequeue/<topic>/<queue id>/`, `checkpoint`, `abort`, `lock`, `config/`.
"""
