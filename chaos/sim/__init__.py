"""Whole clusters of real cores in one process, under a seeded clock, network and disk.

    plan       what a seed means                     clock, network, disk   what stands in for the world
    process    one life of one RaftNode              cluster                the group and all that can be done to it
    nemesis    what breaks and is repaired           observer               the invariants, after every event
    run        faults, then heal: safety, liveness   __main__               `python -m chaos.sim --seed N [--trace]`
Everything follows from the seed: a failure is replayed by its number.
"""
