"""A cluster that runs already, as one JSON object tells of it: where its nameserver is, and commands for the rest.

    {"namesrv": "host:port[;host:port]",
     "faults": {"kill-master": CMD, "start-dead": CMD},
     "checks": {"digest": CMD}}        prints {"nodes": [{"name", "end", "sha256"}, ...]}

`ledgermq cluster up` prints such an object; for a cluster of another kind (containers) a script writes it.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.errors import CommandError, UsageError

_COMMAND_LIMIT_S = 60.0
_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 40.0


@dataclass(frozen=True, slots=True)
class NodeDigest:
    """The hash of one node's log files up to its confirm offset `end`."""

    name: str
    end: int
    sha256: str


class RunningCluster:
    """The commands of a description, as functions.

    Args:
        description: the JSON object above.

    Raises:
        UsageError: a part of the description is missing.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        try:
            self.namesrv = str(description["namesrv"])
            self._kill = str(description["faults"]["kill-master"])
            self._start = str(description["faults"]["start-dead"])
            self._digest = str(description["checks"]["digest"])
        except (KeyError, TypeError) as error:
            raise UsageError(f"the cluster's description lacks {error}") from error

    async def kill_leader(self) -> str:
        """Kill the node that leads, at once; its name where the command tells it."""
        return _first_name(await _run(self._kill))

    async def start_dead(self) -> str:
        """Start what was killed; its name where the command tells it."""
        return _first_name(await _run(self._start))

    async def digests(self) -> list[NodeDigest]:
        """One digest a node, at the same confirm offset unless the nodes do not agree within the command's patience.

        Raises:
            CommandError: the command failed or printed something else.
        """
        text = await _run(self._digest)
        try:
            return [NodeDigest(str(n["name"]), int(n["end"]), str(n["sha256"])) for n in json.loads(text)["nodes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"the digest command printed {text[:200]!r}") from error


@contextlib.asynccontextmanager
async def local_cluster(directory: Path, node_count: int) -> AsyncIterator[RunningCluster]:
    """`ledgermq cluster up` as a child in `directory`, stopped in order on leaving.

    Raises:
        CommandError: it did not come up; the text says why.
    """
    words = ["cluster", "up", "--mode", "raft", "--nodes", str(node_count), "--dir", str(directory), "--json"]
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "cli", "--die-with-parent", str(os.getpid()), *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield RunningCluster(await _read_description(up))
    finally:
        await _stop(up)


async def _read_description(up: asyncio.subprocess.Process) -> dict[str, Any]:
    assert up.stdout is not None, "stdout is a pipe"
    try:
        line = await asyncio.wait_for(up.stdout.readline(), _START_LIMIT_S)
        description: dict[str, Any] = json.loads(line)
    except (TimeoutError, ValueError):
        with contextlib.suppress(ProcessLookupError):
            up.terminate()
        _, said = await up.communicate()
        raise CommandError(f"the cluster did not come up: {said.decode(errors='replace').strip()}") from None
    return description


async def _stop(up: asyncio.subprocess.Process) -> None:
    if up.returncode is not None:
        return
    up.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(up.communicate(), _STOP_LIMIT_S)
    except TimeoutError:
        up.kill()  # its children are tied to it
        await up.wait()


async def _run(command: str) -> str:
    """Run a shell command; its standard output.

    Raises:
        CommandError: it failed, with what it said, or took too long.
    """
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, said = await asyncio.wait_for(process.communicate(), _COMMAND_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandError(f"no end within {_COMMAND_LIMIT_S:g} s: {command}") from None
    if process.returncode != 0:
        raise CommandError(f"{command}: exit {process.returncode}: {said.decode(errors='replace').strip()}")
    return out.decode(errors="replace")


def _first_name(text: str) -> str:
    """The name of the first node in an answer of `ledgermq cluster`; else the output's first line."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(text)["nodes"][0]["name"])
    return text.strip().split("\n")[0]
