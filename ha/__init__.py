"""Masters and slaves: the modes of replication in which the master is appointed, on the store's classic log.

    master   store.log.commit_log <--Part-- master.py <-- sender.py: one `SlaveLink` a slave ---frames--->
    slave    store.log.commit_log <--Part-- slave.py  <-- receiver.py                       <---reports---

`core` knows the rules and no socket: both dialects of the stream, the handshake, which slaves count, and what a
batch waits for. Reading order: core.stream, core.handshake, core.copies, sender, master, receiver, slave.
"""
