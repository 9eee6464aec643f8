"""A running cluster, described by a JSON object: its nameservers, and commands for everything else.

    {"namesrv": "host:port[;host:port]",
     "nodes": [{"name", "address"}, ...],                  optional, for names in the output
     "faults": {"kill-master": CMD, "start-dead": CMD},   {address} in the first is replaced by the leader's
     "checks": {"digest": CMD}}        prints {"nodes": [{"name", "end", "sha256"}, ...]}

`ledgermq cluster up` prints such an object; for another kind of cluster (containers) a script writes it.
"""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from chaos.fabric.contract import NodeDigest
from cli.cluster.child import our_argv
from cli.cluster.roles import ask_brokers
from ledgermq.remoting.client import RemotingClient
from node.errors import CommandError, UsageError

_COMMAND_LIMIT_S = 60.0
_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 40.0
_LEADER_LIMIT_S = 10.0


class RunningCluster:
    """The commands of a description, as functions.

    Args:
        description: the JSON object above.

    Raises:
        UsageError: a member of the description is missing.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self._client = RemotingClient()
        try:
            self.namesrv = str(description["namesrv"])
            self._kill = str(description["faults"]["kill-master"])
            self._start = str(description["faults"]["start-dead"])
            self._digest = str(description["checks"]["digest"])
            self._names = {str(node["address"]): str(node["name"]) for node in description.get("nodes", ())}
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"the cluster's description lacks {error}") from error

    def name_of(self, address: str) -> str:
        """Return the description's name of the node at `address`, or the address if it has none."""
        return self._names.get(address, address)

    async def leader(self) -> str:
        """Return the address of the present master, from the first nameserver that answers.

        Raises:
            CommandError: no nameserver answers, or there is no master within a few seconds.
        """
        deadline = time.monotonic() + _LEADER_LIMIT_S
        while True:
            try:
                for namesrv in self.namesrv.split(";"):
                    if masters := (await ask_brokers(self._client, namesrv)).masters():
                        return masters[0]
                failure = "no broker is master"
            except CommandError as error:
                failure = str(error)
            if time.monotonic() > deadline:
                raise CommandError(failure)
            await asyncio.sleep(0.1)

    async def kill_leader(self) -> str:
        """Kill the leader at once; return its name if the command prints it."""
        return _first_name(await _run(self._kill.replace("{address}", await self.leader())))

    async def aclose(self) -> None:
        """Close the connections to the nameservers; the cluster keeps running."""
        await self._client.close()

    async def start_dead(self) -> str:
        """Start the node that was killed; return its name if the command prints it."""
        return _first_name(await _run(self._start))

    async def digests(self) -> list[NodeDigest]:
        """Return one digest for each node, at the same confirm offset if the nodes agree on one in time.

        Raises:
            CommandError: the command failed or printed something else.
        """
        text = await _run(self._digest, may_fail=True)  # unequal logs are a result of the demo, not an error
        try:
            return [NodeDigest(str(n["name"]), int(n["end"]), str(n["sha256"])) for n in json.loads(text)["nodes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"the digest command printed {text[:200]!r}") from error


@contextlib.asynccontextmanager
async def local_cluster(directory: Path, *shape: str) -> AsyncIterator[RunningCluster]:
    """Run `ledgermq cluster up` as a child in `directory`; it is stopped in order at the end of the block.

    `shape` is what `cluster up` is told of the mode and the nodes. From now on SIGTERM acts as Ctrl-C, so that
    the caller's cleaning up is done.

    Raises:
        CommandError: it did not start; the text says why.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    words = ["cluster", "up", *shape, "--dir", str(directory), "--json"]
    up = await asyncio.create_subprocess_exec(
        *our_argv(*words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with contextlib.aclosing(RunningCluster(await _read_description(up))) as cluster:
            yield cluster
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
        _, errors = await up.communicate()
        raise CommandError(f"the cluster did not come up: {errors.decode(errors='replace').strip()}") from None
    return description


async def _stop(up: asyncio.subprocess.Process) -> None:
    if up.returncode is not None:
        return
    up.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(up.communicate(), _STOP_LIMIT_S)
    except TimeoutError:
        up.kill()  # its children end with it
        await up.wait()


async def _run(command: str, *, may_fail: bool = False) -> str:
    """Run a shell command; return its standard output.

    Raises:
        CommandError: it failed, with its output, or took too long.
    """
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), _COMMAND_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandError(f"not finished within {_COMMAND_LIMIT_S:g} s: {command}") from None
    if process.returncode != 0 and not (may_fail and out):
        raise CommandError(f"{command}: exit {process.returncode}: {errors.decode(errors='replace').strip()}")
    return out.decode(errors="replace")


def _first_name(text: str) -> str:
    """Return the name of the first node in the output of `ledgermq cluster`, else the first line."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(text)["nodes"][0]["name"])
    return text.strip().split("\n")[0]
