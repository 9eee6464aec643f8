"""The doctor of store directories: `ledgermq store inspect|check|repair|export|tail|diff DIR`.

    directory   what DIR is: classic or DLedger, which files          findings   faults: file, offset, kind, detail
    raw_file    reading without mapping, locking or writing           decoded    a record as JSON
    scan        one log file: its records as columns, its bad places  <- entries (DLedger) and records (classic)
    queue_check, index_check, unit_check, small_check                 what follows from the log, against the log
    check       all of it, one process a file                         repair, mending, rebuild_*  the other way round

Reading commands open files for reading only, take no lock, and work beside a running broker, RocketMQ's or ours.
"""
