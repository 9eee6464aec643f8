"""Judges of a run: they take what was observed and name each anomaly with its count; they start and break nothing."""
