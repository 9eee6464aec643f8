"""Fault injection: faults, and the checks that decide whether anything was lost.

    sim/         whole clusters of real cores in one process, under a seeded clock, network and disk
    crash/       what a power cut may leave on a disk at each moment of a workload, recovered and judged
    elections/   elected masters in a simulation of the cores of `ha`; appointed/: appointed masters and their slaves
    checkers/    judges of a run on real processes: sends against deliveries, whether the logs are equal
    fabric/      the contract of running clusters that can be broken
    drills/      traffic, faults and repairs on a fabric, and the verdict
    compose.py   the cluster of docker-compose.yml, broken and mended from outside
    command.py   how `python -m chaos...` ends

The fabric of processes on this machine is `cli.fabric`, since `cli.cluster` owns the processes.
"""
