"""The client's end of the control socket of `ledgermq cluster up`: one JSON object a line each way.

    request   {"verb": "kill", "words": ["leader"]}
    answer    {"ok": {...}}  or  {"error": "text for the user"}

The path of a unix socket has at most 107 bytes; so that the folder's path may be longer, both ends use /proc/self/fd.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

SOCKET_NAME: Final = "control.sock"
LINE_LIMIT_BYTES: Final = 1 << 20

Answer = dict[str, Any]


class ClusterError(Exception):
    """A cluster did not start, does not run, or did not do what it was told; the text says why."""


def ask(directory: Path, verb: str, *words: str, limit_s: float = 60.0) -> Answer:
    """Have the `cluster up` of `directory` carry out `verb`; blocks until it is done.

    Raises:
        ClusterError: no cluster runs there, or the verb failed; the text says why.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        try:
            with short_path(directory) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"verb": verb, "words": words}).encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline(LINE_LIMIT_BYTES))
        except (FileNotFoundError, ConnectionRefusedError):
            raise ClusterError(
                f"no cluster runs in {directory}; start one with: ledgermq cluster up --dir DIR"
            ) from None
        except TimeoutError:
            raise ClusterError(f"the cluster in {directory} did not answer within {limit_s:g} s") from None
        except (OSError, ValueError) as error:
            raise ClusterError(f"the connection to the cluster in {directory} was lost: {error}") from None
    if "error" in answer:
        raise ClusterError(answer["error"])
    result: Answer = answer["ok"]
    return result


@contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """Give a path of the socket that is short enough for a unix socket, valid in the block."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)
