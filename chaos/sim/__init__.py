"""Whole clusters in one process, under a seeded clock, network and disk.

    plan       what is drawn from a seed             clock, network         simulated time and connections
    process    one process of one node               cluster                the group, and its faults and requests
    nemesis    injects faults and repairs them       observer, log_image    check the invariants after every event
    run        faults, then repair                   __main__               `python -m chaos.sim --seed N [--trace]`
    corpus     the seeds that once failed
    shrink     the fewest faults that still fail     coverage               what many seeds have met together

Nodes are of two kinds. Raft nodes alone, on a disk of entries (`disk`), are fast, so that many seeds are run. Whole
brokers (`stack`, `--stack`), all shipping code but the sockets, on files whose pages a power cut may lose, take about
ten times as long. Everything follows from the seed: a failure is replayed by its number.
"""
