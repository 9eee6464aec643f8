"""A cluster of processes on this machine, run by one process in the foreground.

    up --> plan.py ------> supervisor.py --spawns--> child.py (nameserver, brokers)
           ports.py             ^   '--asks--> roles.py --> nameserver: who is master
                                | one JSON line each way
    status, kill, pause, transfer, ... --> control.py (unix socket in --dir)

Reading order: plan, ports, child, roles, control, supervisor, command.
"""
