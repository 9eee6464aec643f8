"""The command line `ledgermq`.

    main.py       parses the command and runs it; every error becomes one line and an exit code
    tools.py      health, log digest, config explain
    acl/          ACL files of RocketMQ 4.x -> users and policies of a running broker
    cluster/      a cluster of child processes: plan -> supervisor <- control socket <- the other commands
    fabric.py     such a cluster as `chaos.fabric.contract` has it; described.py: one that runs, by commands
    demo/         the end-to-end demonstration, on either of them
    drill.py      drills on either of them; chaos.py, suite.py: many drills; live.py: what is shown meanwhile

Exit codes: 0 done; 1 failed, or a check found a difference; 2 wrong usage or configuration; 130 interrupted.
"""
