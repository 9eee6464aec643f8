"""Nodes as processes: configuration keys, the choice of the log, the assembly of a broker or nameserver."""
