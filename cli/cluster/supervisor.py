"""The process of `ledgermq cluster up`: it starts the nodes, carries out commands of other shells, and stops the nodes.

starting --(nameserver listens, every broker registered, every broker name has a master)--> running --> stopping
"""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from cli.cluster.child import Child, ChildState, process_state
from cli.cluster.control import ControlServer
from cli.cluster.faults import VERBS as FAULT_VERBS
from cli.cluster.faults import Faults
from cli.cluster.linking import Linking
from cli.cluster.plan import ClusterMode, ClusterPlan, NodePlan
from cli.cluster.roles import (
    BrokerTable,
    CopyState,
    ask_brokers,
    ask_controllers,
    ask_copies,
    ask_first,
    transfer_leadership,
)
from cli.cluster.template import Template
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.signature import Credentials
from ledgermq.remoting.tls import ContextSource
from ledgermq.testing.control import Answer
from node.errors import CommandError

_POLL_S = 0.05
_STOP_LIMIT_S = 15.0
_TRANSFER_LIMIT_S = 15.0
_SIGNAL_LIMIT_S = 2.0
_NO_TABLE = BrokerTable({})

Done = tuple[Sequence[NodePlan], str]
"""The nodes of a verb, and the proof of its effect."""


class Supervisor:
    """Owns the children of one cluster.

    Args:
        plan: the nodes to run; their folders exist and their configuration files are written.
        template: starts them.
        say: called with a line for each event that the user should see.
        tls: for connections to the nodes; None: plain.
        credentials: for requests to brokers that check users.
        has_shim: whether brokers start with the library that makes syncs slow and clocks wrong.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        template: Template,
        say: Callable[[str], None],
        tls: ContextSource | None = None,
        credentials: Credentials | None = None,
        *,
        has_shim: bool = False,
    ) -> None:
        self._plan = plan
        self._say = say
        self._client = RemotingClient(tls=tls, credentials=credentials)
        self._control = ControlServer(plan.directory, self._carry_out)
        self._linking = Linking(plan, self._ended) if plan.links else None
        self._children: dict[str, Child] = {}
        self._faults = Faults(plan, self._children, self._linking, self._kill, has_shim=has_shim)
        for node in plan.nodes:
            launch = self._faults.launch(node, partial(template.start, node.arguments))
            self._children[node.name] = Child(node.name, launch, node.log_path, self._ended)
        self._expected_to_end: set[str] = set()
        self._failed_at_start: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def start(self, limit_s: float) -> None:
        """Start every node and wait until the cluster is writable.

        Raises:
            CommandError: a node ended, or no master was known within `limit_s` seconds; the caller still calls `stop`.
        """
        await self._faults.start()
        for child in self._children.values():
            child.start()
        writable = asyncio.ensure_future(self._await_writable(limit_s))
        try:
            either: set[asyncio.Future[Any]] = {writable, self._failed_at_start}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failed_at_start.done():
                child = self._failed_at_start.result()
                raise CommandError(
                    f"{child.name} ended with exit code {child.exit_code} while starting: {child.last_line()}"
                )
            writable.result()
        finally:
            writable.cancel()
            self._failed_at_start.cancel()
        await self._control.start()

    async def stop(self) -> bool:
        """Stop every child: all brokers together, then the others, so that brokers can unregister.

        Returns:
            Whether all of them ended by themselves; the others were killed, and `say` was called for each.
        """
        await self._control.close()
        self._expected_to_end.update(self._children)
        brokers = await asyncio.gather(*(self._stop_child(broker.name) for broker in self._plan.brokers))
        others = (*self._plan.nameservers, *self._plan.controllers)
        stopped = await asyncio.gather(*(self._stop_child(other.name) for other in others))
        if self._linking is not None:
            self._expected_to_end.add(self._linking.child.name)
        await self._faults.stop()
        await self._client.close()
        return all(brokers) and all(stopped)

    async def describe(self) -> Answer:
        """Return what `up` prints: addresses for clients, each node, and commands to break and repair the cluster."""
        status = await self.status()
        shown = ("name", "broker", "address", "pid", "role", "in_sync", "lag_bytes")
        nodes = [{key: node[key] for key in shown if key in node} for node in status["nodes"]]
        elected = {key: status[key] for key in ("controllers", "epoch") if key in status}
        return (
            {"namesrv": status["namesrv"], "mode": status["mode"], "nodes": nodes}
            | elected
            | {
                "nameserver": {key: status["nameserver"][key] for key in ("name", "address", "pid")},
                "dir": str(self._plan.directory),
                "faults": {
                    "kill-master": self._command("kill", "leader"),
                    "start-dead": self._command("start", "dead"),
                },
            }
        )

    async def status(self) -> Answer:
        """Return each node with its pid, state and role."""
        table = await self._table_or_none()
        master = self._master_of(table)
        copies = await self._copies_or_none(master)
        return {
            "namesrv": self._plan.namesrv,
            "mode": self._plan.mode.value,
            "dir": str(self._plan.directory),
            "pid": os.getpid(),
            "has_namespaces": self._plan.has_namespaces,
            "nameserver": self._row(self._plan.nameservers[0], table),
            "nameservers": [self._row(one, table) for one in self._plan.nameservers],
            "nodes": [
                self._row(broker, table) | self._copy_of(broker, master, copies) for broker in self._plan.brokers
            ],
        } | await self._elected()

    async def _elected(self) -> Answer:
        """Return the controllers, the master's epoch and the names of the in-sync set; empty in other modes."""
        plan = self._plan
        if not plan.controllers:
            return {}
        rows = [self._row(controller, _NO_TABLE) for controller in plan.controllers]
        try:
            addresses = [controller.address for controller in plan.controllers]
            decided = await ask_controllers(self._client, addresses, plan.broker_names[0])
        except CommandError:
            return {"controllers": rows, "epoch": None, "in_sync": None}
        for row in rows:
            if row["role"] != "down":
                row["role"] = "leader" if row["address"] == decided.leader else "follower"
        in_sync = [broker.name for broker in plan.brokers if broker.address in decided.in_sync]
        return {"controllers": rows, "epoch": decided.epoch, "in_sync": in_sync}

    async def _await_writable(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while missing := await self._missing():
            if time.monotonic() > deadline:
                raise CommandError(f"not writable within {limit_s:g} s: {missing}; logs are in {self._plan.directory}")
            await asyncio.sleep(_POLL_S)

    async def _missing(self) -> str | None:
        """Return what is missing until the cluster is writable with all its nodes; None if nothing is."""
        nameservers = self._plan.nameservers
        try:
            tables = [await ask_brokers(self._client, nameserver.address) for nameserver in nameservers]
        except CommandError as error:
            return str(error)
        for nameserver, table in zip(nameservers, tables, strict=True):
            if missing := self._missing_in(table):
                return f"{missing} at {nameserver.name}"
        if self._plan.mode.has_slaves:
            return await self._missing_copies(self._node_at(tables[0].masters()[0]))
        return None

    def _missing_in(self, table: BrokerTable) -> str | None:
        for name in self._plan.broker_names:
            if 0 not in table.brokers.get(name, {}):
                return f"{name} has no master"
        absent = [broker.name for broker in self._plan.brokers if table.role_of(broker.address) == "unknown"]
        return f"{', '.join(absent)} not registered" if absent else None

    async def _missing_copies(self, master: NodePlan) -> str | None:
        slaves = [broker for broker in self._plan.brokers if broker is not master]
        try:
            copies = await ask_copies(self._client, master.address)
        except CommandError as error:
            return str(error)
        late = [node.name for node in slaves if node.address not in copies or not copies[node.address].in_sync]
        return f"{', '.join(late)} not in sync with {master.name}" if late else None

    def _master_of(self, table: BrokerTable) -> NodePlan | None:
        """Return the broker with slaves; None while there is none."""
        if self._plan.mode.has_master:
            return self._plan.brokers[0]
        masters = table.masters() if self._plan.mode.has_slaves else []
        return self._node_at(masters[0]) if masters else None

    async def _copies_or_none(self, master: NodePlan | None) -> dict[str, CopyState]:
        """Return the states of the master's slaves, by address; empty without a master or its answer."""
        if master is None:
            return {}
        try:
            return await ask_copies(self._client, master.address)
        except CommandError:
            return {}

    def _copy_of(self, node: NodePlan, master: NodePlan | None, copies: dict[str, CopyState]) -> Answer:
        """Return whether a node counts, and the bytes that it lacks; None if the master does not tell."""
        if not self._plan.mode.has_slaves:
            return {}
        if node is master:
            is_up = self._children[node.name].state is ChildState.UP
            return {"in_sync": is_up, "lag_bytes": 0 if is_up else None}
        copy = copies.get(node.address)
        return {"in_sync": copy is not None and copy.in_sync, "lag_bytes": None if copy is None else copy.lag_bytes}

    async def _table(self) -> BrokerTable:
        """Return what the first nameserver that answers knows.

        Raises:
            CommandError: none answers.
        """
        running = [one for one in self._plan.nameservers if self._children[one.name].state is ChildState.UP]
        return await ask_first(self._client, [one.address for one in running or self._plan.nameservers], timeout_s=1.0)

    async def _table_or_none(self) -> BrokerTable:
        try:
            return await self._table()
        except CommandError:
            return _NO_TABLE  # nameservers may have been killed, too

    def _row(self, node: NodePlan, table: BrokerTable) -> Answer:
        child = self._children[node.name]
        role = "nameserver" if node.command == "nameserver" else table.role_of(node.address)
        return {
            "name": node.name,
            "address": node.address,
            "pid": child.pid,
            "role": "down" if child.state is ChildState.DOWN else role,
            "state": child.state.value,
            "health": f"http://{node.host}:{node.health_port}",
            # our mounts are in our namespace only; others see them through our process
            "log": f"/proc/{os.getpid()}/root{node.log_directory}" if self._plan.has_disks else str(node.log_directory),
        } | ({"broker": node.conf["brokerName"]} if node.command == "broker" else {})

    def _command(self, *words: str) -> str:
        here = [
            sys.executable,
            "-P",
            "-m",
            "ledgermq_server",
            "cluster",
            *words,
            "--dir",
            str(self._plan.directory),
            "--json",
        ]
        return shlex.join(here)

    # ---- verbs of the control socket

    async def _carry_out(self, verb: str, words: Sequence[str]) -> Answer:
        if verb == "status":
            return await self.status()
        if verb in FAULT_VERBS:
            return {"verb": verb, "at": round(time.time(), 3), "proof": await self._faults.change(verb, words)}
        verbs: dict[str, Callable[[str], Awaitable[Done]]] = {
            "kill": self._kill,
            "stop": self._stop_again,
            "start": self._start_again,
            "pause": self._pause,
            "resume": self._resume,
            "wipe": self._wipe,
            "transfer": self._transfer,
        }
        if verb not in verbs:
            raise CommandError(f"{verb!r} is not one of status, {', '.join((*verbs, *sorted(FAULT_VERBS)))}")
        at = time.time()
        if len(words) != 1:
            raise CommandError(f"{verb} takes one node, not {len(words)}")
        nodes, proof = await verbs[verb](words[0])
        table = await self._table_or_none()
        return {"verb": verb, "at": round(at, 3), "proof": proof, "nodes": [self._row(node, table) for node in nodes]}

    async def _kill(self, word: str) -> Done:
        nodes = await self._resolve(word)
        ended = []
        for node in nodes:  # all at once, as a machine's brokers end
            child = self._running(node)
            ended.append(f"pid {child.pid} ended by SIGKILL")
            self._expected_to_end.add(node.name)
            child.kill()
        for node in nodes:
            child = self._children[node.name]
            if not await child.ended_within(_STOP_LIMIT_S):
                raise CommandError(f"{node.name} (pid {child.pid}) has not ended {_STOP_LIMIT_S:g} s after SIGKILL")
        return nodes, ", ".join(ended)

    async def _stop_again(self, word: str) -> Done:
        nodes = await self._resolve(word)
        ended = []
        for node in nodes:
            child = self._running(node)
            ended.append(f"pid {child.pid} ended by SIGTERM")
            self._expected_to_end.add(node.name)
            if not await self._stop_child(node.name):
                raise CommandError(f"{node.name} did not stop in order")
        return nodes, ", ".join(ended)

    async def _start_again(self, word: str) -> Done:
        nodes = await self._resolve(word)
        for node in nodes:
            child = self._children[node.name]
            if child.state is not ChildState.DOWN:
                raise CommandError(f"{node.name} is already running (pid {child.pid}, {child.state})")
            self._expected_to_end.discard(node.name)
            child.start()
        return nodes, ", ".join(f"pid {self._children[node.name].pid} runs" for node in nodes)

    async def _pause(self, word: str) -> Done:
        nodes = await self._resolve(word)
        states = []
        for node in nodes:
            self._running(node).pause()
            states.append(await self._shown_state(node, "T"))
        return nodes, ", ".join(states)

    async def _resume(self, word: str) -> Done:
        nodes = await self._resolve(word)
        states = []
        for node in nodes:
            self._running(node).resume()
            states.append(await self._shown_state(node, "SRD"))
        return nodes, ", ".join(states)

    async def _shown_state(self, node: NodePlan, wanted: str) -> str:
        """Wait until the kernel shows the process in one of these states."""
        pid = self._running(node).pid
        deadline = time.monotonic() + _SIGNAL_LIMIT_S
        while (state := process_state(pid)) not in set(wanted):
            if time.monotonic() > deadline:
                raise CommandError(f"{node.name} (pid {pid}) is in state {state}, not {' or '.join(wanted)}")
            await asyncio.sleep(0.001)
        return f"pid {pid} is in state {state}"

    async def _wipe(self, word: str) -> Done:
        """Delete what nodes have stored; their configuration and their output stay."""
        nodes = await self._resolve(word)
        count = 0
        for node in nodes:
            if self._children[node.name].state is not ChildState.DOWN:
                raise CommandError(f"{node.name} is running: kill or stop it before its data are deleted")
            count += await asyncio.to_thread(_delete_data, node)
        return nodes, f"{count} files deleted"

    async def _transfer(self, word: str) -> Done:
        """Transfer leadership to a node; done when the nameserver shows it as master."""
        target, *others = await self._resolve(word)
        if others or target not in self._plan.brokers:
            raise CommandError(f"{word} is not one broker")
        table = await self._table()
        leaders = [a for a in table.masters() if self._node_at(a).conf["brokerName"] == target.conf["brokerName"]]
        if not leaders:
            raise CommandError("there is no leader at this moment")
        if leaders != [target.address]:
            wanted = target.name if self._plan.mode is ClusterMode.RAFT else target.address
            await transfer_leadership(self._client, leaders[0], wanted)
        deadline = time.monotonic() + _TRANSFER_LIMIT_S
        while target.address not in (await self._table_or_none()).masters():
            if time.monotonic() > deadline:
                raise CommandError(f"{target.name} has not become leader within {_TRANSFER_LIMIT_S:g} s")
            await asyncio.sleep(_POLL_S)
        return [target], f"{target.name} is master in the routes"

    def _running(self, node: NodePlan) -> Child:
        child = self._children[node.name]
        if child.state is ChildState.DOWN:
            raise CommandError(f"{node.name} is not running")
        return child

    async def _resolve(self, word: str) -> Sequence[NodePlan]:
        """Return the nodes that NODE stands for.

        Raises:
            CommandError: there is no such node, or none that fits at this moment.
        """
        if word in ("leader", "master"):
            masters = (await self._table()).masters()
            if not masters:
                raise CommandError("there is no leader at this moment")
            return [self._node_at(masters[0])]
        if word in ("dead", "paused"):
            state = ChildState.DOWN if word == "dead" else ChildState.PAUSED
            if not (found := [node for node in self._plan.nodes if self._children[node.name].state is state]):
                raise CommandError(f"no node is {'down' if word == 'dead' else 'paused'}")
            return found
        return self._plan.machines.get(word) or [self._node_at(word)]

    def _node_at(self, word: str) -> NodePlan:
        for node in self._plan.nodes:
            if word in (node.name, node.address):
                return node
        names = ", ".join((*(node.name for node in self._plan.nodes), *self._plan.machines))
        raise CommandError(
            f"{word!r} is not a node of this cluster; give one of {names}, leader, dead, paused, or an address"
        )

    # ---- the children's ends

    async def _stop_child(self, name: str) -> bool:
        child = self._children[name]
        if child.state is ChildState.DOWN:
            return True
        pid = child.pid
        if not await child.stop(_STOP_LIMIT_S):
            self._say(f"{name} (pid {pid}) did not end within {_STOP_LIMIT_S:g} s of SIGTERM and was killed")
            return False
        # SIGTERM may arrive before the node has installed its handler
        in_order = child.exit_code in (0, -signal.SIGTERM)
        if not in_order:
            self._say(f"{name} (pid {pid}) ended with exit code {child.exit_code}: {child.last_line()}")
        return in_order

    def _ended(self, child: Child) -> None:
        if child.name in self._expected_to_end:
            return
        if not self._failed_at_start.done():
            self._failed_at_start.set_result(child)
            return
        self._say(f"{child.name} ended with exit code {child.exit_code}: {child.last_line()}")


def _delete_data(node: NodePlan) -> int:
    """Delete everything in a stopped node's folder but its configuration and its output; return the number of files."""
    kept = (node.conf_path, node.log_path)
    directory = node.disk if node.disk.is_dir() else node.directory
    count = 0
    for path in directory.iterdir():
        if path.is_dir():
            count += sum(1 for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
        elif path not in kept:
            path.unlink()
            count += 1
    return count
