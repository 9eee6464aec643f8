"""Running clusters that can be broken: one contract, whatever the cluster is made of.

contract.py   the verbs of a fabric and what it shows of its nodes
"""
