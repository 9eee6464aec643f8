"""The main job end to end: a file through a cluster whose leader is killed in mid-stream, and everything verified.

text.py      the input: a file cut into lines, or text made from what the project carries
cluster.py   a running cluster: its nameserver, and the commands that break, mend and hash it
stream.py    lines -> producer -> cluster -> consumer group -> chaos.checkers.delivery
drill.py     the order of events: stream, kill, restart, drain, compare
progress.py  one moving line          result.py  figures, table, JSON
"""
