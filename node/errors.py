"""What a command says when it cannot do its work: one line for the user, and an exit code.

CommandError      1  the world refused: a port in use, a node that does not answer, a check that failed
'-- UsageError    2  the words or the configuration are wrong; nothing was started
"""


class CommandError(Exception):
    """The command failed; its text is all that the user needs."""

    exit_code = 1


class UsageError(CommandError):
    """The command line or a configuration file is wrong."""

    exit_code = 2
