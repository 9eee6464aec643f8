"""An appointed master and its slaves in a deterministic simulation: what SEND_OK promises, and what a promotion keeps.

plan         what a seed means
node         one life of a broker's log: `CommitLog` with `ha.Master` or `ha.Slave` as its part, on simulated sockets
world        the nodes, their disks and lines, and the operator, who starts, wipes and promotes them
judge        what was promised and read, compared with what is on the disks
simulation   faults, then heal: all must recover
"""
