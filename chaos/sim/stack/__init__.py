"""The shipping broker, from the Raft log to the replicated tables, on files whose pages a power cut may lose.

    loop, threads   an event loop and threads in virtual time
    replacements    what Python and the system give to shipping code, replaced
    disk            one node's directory, its faults, its crashes
    log             the shipping entry log, watched
    programs        users' programs: the shipping producer, its routes and retries; transactors: with transactions
    poppers         programs that take messages by POP
    nameservers     shipping nameservers, and their faults
    node            one life of one broker without its sockets
    accounts        what the committed log means: the judge

What runs is the code of `store`, `dledger`, `broker`, `nameserver` and the client; nothing of it knows that it is
simulated. Files are real ones in memory (/dev/shm), with real mappings; `chaos.crash.shadow` keeps beside them what a
power cut leaves.
"""
