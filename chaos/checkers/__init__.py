"""Judges of a run: they take what was observed, and count each kind of anomaly; they start and break nothing."""
