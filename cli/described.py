"""A running cluster described by a JSON object: its nameservers, its brokers, and a command for each verb.

    {"namesrv": "host:port[;host:port]",
     "fabric": "compose",                             what it runs on; default: processes
     "mode": "raft",                                  how brokers replicate; default: raft
     "nodes": [{"name", "address"}, ...],             one with a "kind" that is not "broker" is left out; with a
                                                      "target", which is what LedgerMQ's leader calls the node,
                                                      `transfer` needs no command
     "nameserver": "namesrv",                         name of the first nameserver
     "verbs": {"kill": CMD, "start": CMD, ...},       names of nodes are appended; see `chaos.fabric.contract.Verb`
     "checks": {"digest": CMD}}                       optional: prints {"nodes": [{"name", "end", "sha256"}, ...]}

The clusters of `chaos.compose` and of `benchmarks/peers/rocketmq` print such an object.
"""

import asyncio
import functools
import json
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from chaos.fabric.contract import UNDONE_BY, ClusterView, NodeDigest, NodeView, Verb
from cli.cluster.plan import ClusterMode
from cli.cluster.roles import BrokerTable, ask_first, transfer_leadership
from cli.fabric import LocalFabric
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from node.errors import CommandError, UsageError

_COMMAND_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 0.5
_EFFECT_LIMIT_S = 120.0  # a Java broker on a busy machine takes a minute to start
_POLL_S = 0.1
_STATES = {Verb.KILL: "down", Verb.STOP: "down", Verb.PAUSE: "paused", Verb.START: "up", Verb.RESUME: "up"}
_STATES[Verb.UNPLUG] = "unplugged"


class DescribedFabric:
    """The `Fabric` that uses the commands of a description.

    A fault is proven when the node does not answer requests any more, its repair when it does. Nodes that were down
    before are not known.

    Raises:
        KeyError, ValueError, TypeError: the description is wrong.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self.namesrv = str(description["namesrv"])
        self._commands = {Verb(verb): str(command) for verb, command in description["verbs"].items()}
        brokers = [node for node in description["nodes"] if node.get("kind", "broker") == "broker"]
        self._addresses = {str(node["name"]): str(node["address"]) for node in brokers}
        self._targets = {str(node["name"]): str(node["target"]) for node in brokers if "target" in node}
        self.verbs = frozenset(self._commands) | ({Verb.TRANSFER} if self._targets else frozenset())
        self.mode = ClusterMode(description.get("mode", "raft")).value
        self.kind = str(description.get("fabric", "processes"))
        self._nameserver = str(description.get("nameserver", "namesrv"))
        self._digest: str | None = description.get("checks", {}).get("digest")
        self._client = RemotingClient()
        self._states: dict[str, str] = {}

    async def act(self, verb: Verb, *words: str) -> str:
        """See `Fabric.act`."""
        if verb is Verb.TRANSFER and words[0] in self._targets:
            leader = next(iter((await self._table()).masters()), "nobody")
            await transfer_leadership(self._client, leader, self._targets[words[0]])
            return await _effect(f"{words[0]} is master in the routes", functools.partial(self._leads, words[0]))
        if verb not in self._commands:
            raise CommandError(f"the description of this cluster has no command for {verb}")
        if verb in _STATES:
            self._states[words[0]] = _STATES[verb]  # a failed command may have had its effect, too
        told = await _run(f"{self._commands[verb]} {shlex.join(words)}")
        if verb is Verb.TRANSFER:
            return await _effect(f"{words[0]} is master in the routes", functools.partial(self._leads, words[0]))
        if verb not in _STATES:
            if verb is Verb.HEAL and not (words and ">" in words[0]):
                for name, state in self._states.items():
                    if state == "unplugged" and name in (words or self._states):
                        self._states[name] = "up"
            return told.strip() or "its command has succeeded"
        name = words[0]
        if _STATES[verb] == "up":
            return await _effect(f"{name} answers", functools.partial(self._answers, name))
        return await _effect(f"{name} does not answer", functools.partial(self._is_silent, name))

    async def inspect(self) -> ClusterView:
        """See `Fabric.inspect`."""
        table = await self._table()
        nodes = []
        for name, address in self._addresses.items():
            state = self._states.get(name, "up")
            nodes.append(NodeView(name, address, "down" if state == "down" else table.role_of(address), state))
        return ClusterView(tuple(nodes), self._nameserver)

    async def mend(self) -> None:
        """See `Fabric.mend`."""
        undoing = [(UNDONE_BY[state], [name]) for name, state in self._states.items() if state in UNDONE_BY]
        if Verb.HEAL in self._commands:
            undoing.append((Verb.HEAL, []))
        failures = []
        for verb, words in undoing:
            try:
                await self.act(verb, *words)
            except CommandError as error:  # undo the others as well
                failures.append(str(error))
        if failures:
            raise CommandError(f"not everything is undone: {'; '.join(failures)}")

    async def digests(self) -> Sequence[NodeDigest] | None:
        """See `Fabric.digests`."""
        if self._digest is None:
            return None
        text = await _run(self._digest, may_fail=True)  # unequal logs are a result, not an error
        try:
            return [NodeDigest(str(n["name"]), int(n["end"]), str(n["sha256"])) for n in json.loads(text)["nodes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"the digest command printed {text[:200]!r}") from error

    async def aclose(self) -> None:
        """Close the connections; the cluster keeps running."""
        await self._client.close()

    async def _table(self) -> BrokerTable:
        """Return what the first nameserver that answers knows."""
        return await ask_first(self._client, self.namesrv.split(";"))

    async def _leads(self, name: str) -> bool:
        return self._addresses[name] in (await self._table()).masters()

    async def _answers(self, name: str) -> bool:
        """Return whether a node answers a request; a refusal is an answer, too."""
        address = self._addresses.get(name, self.namesrv.split(";")[0])
        try:
            await self._client.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), _ANSWER_LIMIT_S)
        except RemotingError:
            return False
        return True

    async def _is_silent(self, name: str) -> bool:
        return not await self._answers(name)


def attach(path: Path) -> LocalFabric | DescribedFabric:
    """Return the fabric of a cluster that runs.

    Args:
        path: the folder of a `cluster up`, a file with the JSON object that it printed or with one as above; `-`: the
            object comes from standard input.

    Raises:
        UsageError: it cannot be read, or a member is missing.
        CommandError: no cluster runs there.
    """
    if path.is_dir():
        return LocalFabric(path)
    try:
        description: dict[str, Any] = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text())
        return DescribedFabric(description) if "verbs" in description else LocalFabric(Path(description["dir"]))
    except OSError as error:
        raise UsageError(f"--attach {path}: {error.strerror}") from error
    except KeyError as error:
        raise UsageError(f"--attach {path}: the description of the cluster lacks {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"--attach {path}: not a description of a cluster: {error}") from error


async def _effect(proof: str, is_seen: Callable[[], Awaitable[bool]]) -> str:
    """Wait until an effect is seen; return the proof.

    Raises:
        CommandError: it is not seen in time.
    """
    deadline = time.monotonic() + _EFFECT_LIMIT_S
    while not await is_seen():
        if time.monotonic() > deadline:
            raise CommandError(f"not within {_EFFECT_LIMIT_S:g} s: {proof}")
        await asyncio.sleep(_POLL_S)
    return proof


async def _run(command: str, *, may_fail: bool = False) -> str:
    """Run a shell command; return its standard output.

    Raises:
        CommandError: it failed, with its output, or took too long.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must only reach the drill, which undoes its faults
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
