"""An appointed master and its slaves in a deterministic simulation: what SEND_OK promises, and what a promotion keeps.

plan         what is drawn from a seed
node         one process of a broker: `CommitLog` with `ha.Master` or `ha.Slave` as its part, on simulated sockets
world        the nodes, their disks and lines, and the operator, who starts, wipes and promotes them
judge        compares acknowledgements and reads with what is on the disks
simulation   faults, then repair: all nodes must recover
"""
