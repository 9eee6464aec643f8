"""The route table and the election rule, without I/O."""
