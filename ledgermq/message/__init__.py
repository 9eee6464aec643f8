"""The formats, pure: what lies in the log and travels in bodies.

    draft -> record (RecordDraft.write) -> log -> record (check_record, dispatch_fields, decode_record) -> Record
    layout, flags, hosts, properties, crc, hashing, ids: the fields of a record
    batch: the body of a batch send          pop_handle, java_properties: texts on the wire
    queue_unit, batch_unit, index_unit: what queues and the index by key hold of a record

Read `record` first: it has the byte table.
"""
