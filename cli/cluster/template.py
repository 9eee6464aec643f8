"""The process from which the nodes of a cluster are forked, so that their modules are imported only once.

    up --fork--> template --fork--> n0, n1, ..., also those that start again
     '-- one JSON packet a request, one an answer --'

A forked node is like a new process after its imports: it has no loop, no threads and no open files.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from cli.lifeline import die_with_parent
from node.errors import CommandError
from telemetry.collector import without_collections

_PACKET_BYTES: Final = 1 << 16
_NODE_MODULES: Final = (
    "ha.controller.server",
    "nameserver.server",
    "node.broker_assembly",
    "node.kept_settings",
    "node.run",
)


class ForkedNode:
    """A node's process, a child of the template, with the attributes of `subprocess.Popen` that `Child` uses."""

    def __init__(self, template: "Template", pid: int) -> None:
        self.pid = pid
        self._template = template

    def wait(self) -> int:
        """Return the exit code, negative for a signal, once the process has ended; the template then forgets it."""
        try:
            return int(self._template.ask({"wait": self.pid}))
        except CommandError:
            return -signal.SIGKILL  # killed with the template


class Template:
    """The interface to the template in the process of `cluster up`."""

    def __init__(self, requests: socket.socket, pid: int) -> None:
        self._requests = requests
        self._pid = pid

    def start(self, words: Sequence[str], log_path: Path) -> ForkedNode:
        """Run `ledgermq WORDS` in a new process whose output is appended to `log_path`.

        Raises:
            CommandError: the template has ended.
        """
        return ForkedNode(self, int(self.ask({"start": list(words), "log": str(log_path.absolute())})))

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request to the template and wait for its answer.

        Raises:
            CommandError: the template has ended.
        """
        with contextlib.suppress(ConnectionError):
            self._requests.send(json.dumps(request).encode())
            if answer := self._requests.recv(_PACKET_BYTES):
                return json.loads(answer)
        raise CommandError(f"process {self._pid}, which starts the nodes, has ended")

    def close(self) -> None:
        """End the template, and with it the nodes that still run."""
        self._requests.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def fork_template(run_node: Callable[[Sequence[str]], int]) -> Template | int:
    """Fork the template; call it before there are threads or a loop.

    Args:
        run_node: runs one command in a forked node.

    Returns:
        The template, in this process; in each node the exit code of its command, with which the process is to end.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    up = os.getpid()
    sys.stdout.flush()
    if pid := os.fork():
        theirs.close()
        return Template(ours, pid)
    ours.close()
    os.setsid()  # Ctrl-C is for `up`, which stops the nodes in order
    die_with_parent(up)
    _show_as("ledgermq", "cluster", "template")
    words = _serve(theirs)
    return run_node(["--die-with-parent", str(os.getppid()), *words])


def _serve(requests: socket.socket) -> list[str]:
    """Answer requests until `up` has ended; return only in forked nodes, with the words of their command."""
    while packet := requests.recv(_PACKET_BYTES):
        request = json.loads(packet)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            with without_collections():  # imported at the first start: most errors of `up` are found before
                for module in _NODE_MODULES:
                    import_module(module)
            if not (answer := os.fork()):
                requests.close()
                _become_node(request["start"], request["log"])
                return list(request["start"])
        requests.send(json.dumps(answer).encode())
    os._exit(0)


def _become_node(words: Sequence[str], log_path: str) -> None:
    """Give this process the session, files and command line of one that was started for these words."""
    os.setsid()
    with Path(os.devnull).open("rb") as nothing, Path(log_path).open("ab") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _show_as("ledgermq", *words)


def _show_as(*words: str) -> None:
    """Let `ps` show these words in place of the command line of `up`, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    title = "\0".join(words).encode()[: end - start - 1].ljust(end - start, b"\0")  # the last byte has to be zero
    with contextlib.suppress(OSError), Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(title)
