"""Whole clusters of real cores in one process, under a seeded clock, network and disk."""
