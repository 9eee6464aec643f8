"""Fault injection: what is broken on purpose, and the checks that decide whether anything was lost.

    sim/         whole clusters of real cores in one process, under a seeded clock, network and disk
    crash/       what a power cut may leave on a disk at each moment of a workload, recovered and judged
    checkers/    pure judges of a run on real processes: what was delivered, whether the logs are equal
    compose.py   the cluster of docker-compose.yml, broken and mended from outside

Processes of a local cluster are killed and paused by `cli.cluster`, which owns them.
"""
