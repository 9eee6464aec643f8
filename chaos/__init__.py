"""Fault injection: the seeded simulation of whole clusters, and faults on real processes."""
