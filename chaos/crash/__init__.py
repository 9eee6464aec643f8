"""Crash images: the states that a disk may have after a power cut at each moment of a workload, recovered and judged.

    recorder   watches a directory: each write, sync, rename, allocation is a moment
    disk       the images that a moment allows                    ledger     the records that an image must and may have
    classic    a workload on the classic store, and the judge of its images        raft    the same on a Raft log
    group      three whole brokers that lose power at one moment of a simulated run
    tables     the tables of a broker                             kill_loop  a real broker, killed again and again
    campaign   seed -> workload -> images -> verdicts             __main__   `python -m chaos.crash --mode M --seed S`

Everything follows from the seed: a finding is replayed by its mode and number.
Source of the method: Pillai et al., "All File Systems Are Not Created Equal" (ALICE), OSDI 2014.
"""
