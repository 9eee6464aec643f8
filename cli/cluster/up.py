"""`cluster up`: checks the arguments, starts a cluster, and stops it at the end.

A wrong number of nodes, a folder or port in use, and a wrong configuration are refused before any process starts.
"""

import asyncio
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.auth_settings import AuthSettings
from cli.cluster.folder import ClusterFolder
from cli.cluster.linking import has_toxiproxy, require_toxiproxy
from cli.cluster.plan import (
    ClusterMode,
    ClusterPlan,
    block_size,
    in_namespaces,
    parse_settings,
    plan_cluster,
    used_offsets,
)
from cli.cluster.ports import PortBlock, reserve_block
from cli.cluster.supervisor import Supervisor
from cli.cluster.template import Template
from ledgermq.remoting.errors import TlsFileError
from ledgermq.remoting.signature import Credentials
from ledgermq.remoting.tls import ContextSource, TlsMode
from ledgermq.remoting.tls_settings import TlsSettings
from node.config import load_broker_config, load_controller_config
from node.errors import UsageError
from node.run import stop_signal

_DEFAULT_NODE_COUNT = {ClusterMode.RAFT: 3, ClusterMode.STANDALONE: 1}
_DEFAULT_SLAVE_COUNT = {ClusterMode.ASYNC: 1, ClusterMode.SYNC: 1, ClusterMode.CONTROLLER: 2}
_ANY_BASE_PORT = 1024


Connecting = tuple[ContextSource | None, Credentials | None]
"""TLS and credentials for connections to the nodes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The user's choices; None: the default."""

    mode: str
    node_count: int | None
    slave_count: int | None
    directory: Path
    base_port: int | None
    settings: Sequence[str]
    fresh: bool
    links: str = "never"
    groups: int = 1
    nameservers: int = 1
    has_disks: bool = False
    has_shim: bool = False
    has_namespaces: bool = False


async def run_cluster(shape: Shape, limit_s: float, template: Template) -> int:
    """Start the cluster, print one JSON object once it is writable, wait for SIGTERM or SIGINT, and stop it.

    Args:
        shape: the user's choices.
        limit_s: seconds until the cluster must be writable.
        template: starts the nodes; not owned.

    Returns:
        0 when every node stopped in order, else 1.

    Raises:
        UsageError: the shape or a property is wrong; nothing was started.
        CommandError: ports or folder in use, or not writable within `limit_s` seconds; nothing is left running.
    """
    plan, connecting, _held = _prepare(shape)
    stopped = stop_signal()
    supervisor = Supervisor(plan, template, _say, *connecting, has_shim=shape.has_shim)
    try:
        started = asyncio.ensure_future(supervisor.start(limit_s))
        await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
            print(json.dumps(await supervisor.describe()), flush=True)
            await stopped
        else:
            started.cancel()
            await asyncio.wait({started})
    finally:
        in_order = await supervisor.stop()
    return 0 if in_order else 1


def _prepare(shape: Shape) -> tuple[ClusterPlan, Connecting, tuple[ClusterFolder, PortBlock]]:
    """Return the plan, how to connect to its nodes, and objects that hold the locks on folder and ports."""
    mode = ClusterMode(shape.mode)
    node_count = _node_count(mode, shape)
    settings = parse_settings(shape.settings)
    base_port = _ANY_BASE_PORT if shape.base_port is None else shape.base_port
    groups, nameservers = shape.groups, shape.nameservers
    # wrong values are refused before anything is changed
    has_links = shape.links == "always" or (shape.links == "auto" and mode.has_links and has_toxiproxy())
    plan_at = functools.partial(
        plan_cluster, directory=shape.directory, settings=settings, has_links=has_links, groups=groups,
        nameservers=nameservers, has_disks=shape.has_disks,
    )  # fmt: skip
    plan_at(mode, node_count, base_port)
    if has_links:
        require_toxiproxy()
    folder = ClusterFolder(shape.directory)
    if shape.fresh:
        folder.empty()
    folder.require_same(mode.value, node_count, groups)
    used = used_offsets(mode, node_count, has_links=has_links, groups=groups, nameservers=nameservers)
    block = reserve_block(block_size(node_count), used, shape.base_port, preferred=folder.saved_base_port())
    plan = plan_at(mode, node_count, block.base)
    plan = in_namespaces(plan) if shape.has_namespaces else plan
    folder.write_configuration(plan)
    configs = [load_broker_config(broker.conf_path) for broker in plan.brokers]
    for controller in plan.controllers:
        load_controller_config(controller.conf_path)
    connecting = _outgoing(configs[0].broker.tls), _credentials(configs[0].broker.auth)
    folder.remember(plan)
    return plan, connecting, (folder, block)


def _node_count(mode: ClusterMode, shape: Shape) -> int:
    if mode.has_slaves:
        if shape.node_count is not None:
            raise UsageError(f"--nodes is not for mode {mode}: say how many --slaves the master has")
        return 1 + (_DEFAULT_SLAVE_COUNT[mode] if shape.slave_count is None else shape.slave_count)
    if shape.slave_count is not None:
        raise UsageError(f"--slaves is not for mode {mode}: say how many --nodes there are")
    return (_DEFAULT_NODE_COUNT[mode] if shape.node_count is None else shape.node_count) * max(shape.groups, 1)


def _credentials(settings: AuthSettings) -> Credentials | None:
    """Return the first user of the configuration, if brokers check users."""
    users = settings.super_users() if settings.authentication_enable else []
    return Credentials(users[0].name, users[0].password) if users else None


def _outgoing(settings: TlsSettings) -> ContextSource | None:
    if settings.mode is TlsMode.ENFORCING and not settings.tls_outgoing:
        raise UsageError("tls.server.mode=enforcing: the nodes need useTLS=true to reach each other")
    try:
        settings.incoming()
        return settings.outgoing()
    except TlsFileError as error:
        raise UsageError(str(error)) from error


def _say(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)
