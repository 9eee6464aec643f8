"""Route tables and the election rule, pure."""
