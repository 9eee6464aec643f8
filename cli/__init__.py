"""The command line `ledgermq`: it reads configuration files, assembles nodes, and runs clusters on this machine.

    main.py       words -> a function; every error becomes one line and an exit code
    config.py     configuration files -> BrokerConfig, NameServerConfig     (properties.py, keys.py, explain.py)
    node.py       one broker or nameserver as this process
    cluster/      a cluster of child processes: plan -> supervisor <- control socket <- the other verbs
    demo/         the main job, end to end, on such a cluster or on one that already runs

Exit codes: 0 done, 1 failed or a check negative, 2 usage or configuration, 130 interrupted.
"""
