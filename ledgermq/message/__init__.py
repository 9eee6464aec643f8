"""Encodes and decodes the formats of the log and of request bodies. No I/O.

    draft -> record (RecordDraft.write) -> log -> record (check_record, dispatch_fields, decode_record) -> Record
    layout, flags, hosts, properties, crc, hashing, ids: the fields of a record
    batch: the body of a batch send          pop_handle, java_properties: texts in requests
    queue_unit, batch_unit, index_unit: the entries for a record in queues and in the index by key

Read `record` first: it has the byte table.
"""
