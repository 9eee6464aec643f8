"""Crash images: what a disk may hold when the power goes, at each moment of a workload; each is recovered and judged.

    recorder   watches a directory: each write, sync, rename, allocation is a moment
    disk       what of a moment may be on the disk                ledger     what must be, and what may be, in the log
    classic    a workload on the classic store, and the judge of its images        raft    the same on a Raft log
    group      three whole brokers that lose power at one moment of a simulated run
    campaign   seed -> workload -> images -> verdicts             __main__   `python -m chaos.crash --mode M --seed S`

Everything follows from the seed: a finding is replayed by its mode and number.
Source of the method: Pillai et al., "All File Systems Are Not Created Equal" (ALICE), OSDI 2014.
"""
