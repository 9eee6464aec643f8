"""Whole clusters in one process, under a seeded clock, network and disk.

    plan       what a seed means                     clock, network         what stands in for the world
    process    one life of one node                  cluster                the group and all that can be done to it
    nemesis    what breaks and is repaired           observer, log_image    the invariants, after every event
    run        faults, then heal: safety, liveness   __main__               `python -m chaos.sim --seed N [--trace]`
    corpus     the seeds that once failed
    shrink     the fewest faults that still fail     coverage               what many seeds have met together

Nodes are of two kinds. Raft nodes alone, on a disk of entries (`disk`), are quick and searched widely. Whole brokers,
all that ships but the sockets, on files whose pages a power cut may lose (`stack`, `--stack`), cost some ten times as
much. Everything follows from the seed: a failure is replayed by its number.
"""
