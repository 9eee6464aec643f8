"""The formats, pure: what lies in the log and travels in bodies.

    draft -> record (write_draft) -> log -> record (check_record, dispatch_fields, decode_record) -> Record
    layout, flags, hosts, properties, crc, hashing, ids: the fields of a record
    batch: the body of a batch send          queue_unit: the unit of a consume queue

Read `record` first: it has the byte table.
"""
