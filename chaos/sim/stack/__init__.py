"""The shipping broker, from the Raft log to the replicated tables, on files whose pages a power cut may lose.

    loop, threads   an event loop and threads in virtual time
    replacements    simulated time, randomness, threads and file calls for shipping code
    disk            one node's directory, with faults and crashes
    log             the shipping entry log, which reports to the simulation
    programs        users' programs with the shipping producer; transactors: with its transactions
    poppers         programs that take messages by POP
    nameservers     shipping nameservers, and their faults
    node            one process of one broker, without its sockets
    accounts        what the committed log means for topics, queues and tables

The code of `store`, `dledger`, `broker`, `nameserver` and the client runs unchanged. Files are real files in memory
(/dev/shm) with real mappings; `chaos.crash.shadow` keeps beside them what a power cut leaves.
"""
