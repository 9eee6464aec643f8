"""The doctor of store directories: `ledgermq store inspect|check|repair|export|tail|diff DIR`.

    directory   the kind of DIR (classic or DLedger) and its files       findings   faults: file, offset, kind, detail
    raw_file    reading without mapping, locking or writing              decoded    a record as JSON
    scan        one log file: its records as columns, its bad places  <- entries (DLedger) and records (classic)
    queue_check, index_check, unit_check, small_check                    derived files, compared with the log
    check       compares all files, one process a file                    repair      rebuilds them from the log

Commands that only read take no lock, and work beside a running broker, RocketMQ's or ours.
"""
