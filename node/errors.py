"""Errors of commands: one line for the user, and an exit code.

CommandError      1  it could not be done: a port in use, a node that does not answer, a check that failed
'-- UsageError    2  the command line or the configuration is wrong; nothing was started
"""


class CommandError(Exception):
    """The command failed; the text is shown to the user."""

    exit_code = 1


class UsageError(CommandError):
    """The command line or a configuration file is wrong."""

    exit_code = 2
