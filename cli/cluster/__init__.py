"""A cluster of processes on this machine, run by one process in the foreground.

    up --> plan.py ------> supervisor.py --starts--> child.py (nameserver, brokers), forked of template.py
           ports.py             ^   '--asks--> roles.py --> nameserver: who is master
                                | one JSON line each way
    status, kill, pause, transfer, ... --> control.py (unix socket in --dir)

Reading order: plan, ports, child, template, roles, control, supervisor, command.
"""
