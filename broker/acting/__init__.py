"""A slave that stands in for its absent master: what waits is delivered by masters of other names (RIP-32)."""
