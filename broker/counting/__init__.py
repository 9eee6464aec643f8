"""Counters of a serving broker; `broker.metrics` and `broker.admin` show them."""
