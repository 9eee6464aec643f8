"""Timers: which message is due when, for messages that wait in topic `rmq_sys_wheel_timer`.

    record of the timer topic --enqueue--> timer log (one unit each) <--chains-- wheel (one slot a second)
                                                  '- by slot: what is due

Read `timer_log.py` (the units), `wheel.py` (the slots), `placing.py` (which slot), `timer_index.py` (all together: what
is due), `recovery.py`, then `checkpoint.py` and `metrics.py` (the small files beside them). All files are RocketMQ's,
byte for byte. Nothing here delivers: that is the broker's business, on the node that leads. Every node keeps an index
of its own from the log.
"""
