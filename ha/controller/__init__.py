"""The controller: appoints masters and keeps in-sync sets of broker names, for brokers in controller mode.

    request -> requests -> command -> quorum (PySyncObj: journal, votes, order) -> core.machine -> outcome -> answer
    heartbeat -> core.live: who is alive ---^  goes into the command as an argument

`core` has the rules and does no I/O: the state machine applies commands in the quorum's order, the same on every
controller. Who is alive is judged by the leading controller alone; commands carry that judgement and the epochs on
which it was based. Reading order: core.model, core.commands, core.machine, core.live, quorum.quorum, server.
"""
