"""The command line `ledgermq`.

    main.py       words -> a function; every error becomes one line and an exit code
    tools.py      health, log digest, config explain
    acl/          ACL files of RocketMQ 4.x -> users and policies of a running broker
    cluster/      a cluster of child processes: plan -> supervisor <- control socket <- the other verbs
    demo/         the main job, end to end, on such a cluster or on one that already runs

Exit codes: 0 done; 1 failed, or a check found a difference; 2 wrong words or configuration; 130 interrupted.
"""
