"""Running clusters that can be broken: one contract, whatever the cluster is made of.

contract.py   the verbs of a fabric and what it shows of its nodes
links.py      connections between brokers, cut and delayed by Toxiproxy, each change proven
"""
