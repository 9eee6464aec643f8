"""The end-to-end demonstration: sends a file through a cluster, kills its leader meanwhile, and verifies everything.

text.py      the input: a file cut into lines, or text made from files of the project
stream.py    lines -> producer -> cluster -> consumer group -> chaos.checkers.operations
drill.py     the order of events: stream, kill, restart, drain, compare
result.py    figures, table, JSON
"""
