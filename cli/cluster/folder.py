"""The folder of a local cluster: its data, its shape, and the lock of the process that runs it.

    DIR/cluster.json   mode, number of nodes, base port      DIR/namesrv/, DIR/n0/, ...  one folder a node
    DIR/lock           held by the running `cluster up`      DIR/control.sock            see `control`
    DIR/peer-secret    random, made once; proves nodes that share a log to each other
    DIR/controller-secret random, made once; proves controllers to each other
    DIR/namesrv-secret random, made once; proves brokers to the nameserver

A folder with a lock file was made by `cluster up`. Any other folder that is not empty is refused.
"""

import fcntl
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from cli.cluster.plan import ClusterMode, ClusterPlan
from node.errors import CommandError, UsageError

_STATE_NAME = "cluster.json"
_LOCK_NAME = "lock"


class ClusterFolder:
    """The folder of a cluster, locked for this process.

    Raises:
        CommandError: another `cluster up` has locked it, or it was not made by `cluster up`.
        OSError: it cannot be made or written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._check_contents()
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / _LOCK_NAME).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(
                f"a cluster already runs in {directory}; choose another --dir, or stop that one"
            ) from None

    def saved_base_port(self) -> int | None:
        """Return the base port of the last run, so that clients can keep their settings; None without one."""
        saved = self._saved()
        return int(saved["base_port"]) if saved else None

    def empty(self) -> None:
        """Delete the data and logs of the cluster in this folder."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK_NAME:
                path.unlink()

    def require_same(self, mode: str, node_count: int, groups: int) -> None:
        """Check that the cluster in the folder has this mode and number of nodes and groups.

        Raises:
            UsageError: it has another one.
        """
        saved = self._saved()
        if saved and (saved["mode"], saved["nodes"], saved.get("groups", 1)) != (mode, node_count, groups):
            its, ours = _words(saved["mode"], saved["nodes"], saved.get("groups", 1)), _words(mode, node_count, groups)
            raise UsageError(f"{self.directory} holds {its}, not {ours}; choose another --dir or remove it")

    def write_configuration(self, plan: ClusterPlan) -> None:
        """Write every node's configuration file, and missing secrets."""
        of_peers = () if plan.mode is ClusterMode.STANDALONE else (plan.peer_secret_path,)
        of_controllers = (plan.controller_secret_path,) if plan.controllers else ()
        for path in (*of_peers, *of_controllers, plan.namesrv_secret_path):
            if not path.exists():
                _write_secret(path)
        for node in plan.nodes:
            node.directory.mkdir(parents=True, exist_ok=True)
            node.conf_path.write_text(node.conf_text())

    def remember(self, plan: ClusterPlan) -> None:
        """Save the shape for the next start; call it once the configuration has been checked."""
        shape = {"mode": plan.mode.value, "nodes": len(plan.brokers), "base_port": plan.base_port}
        if plan.groups > 1:
            shape["groups"] = plan.groups
        (self.directory / _STATE_NAME).write_text(json.dumps(shape) + "\n")

    def _check_contents(self) -> None:
        ours = (self.directory / _LOCK_NAME).exists()
        if self.directory.exists() and not ours and any(self.directory.iterdir()):
            raise CommandError(f"{self.directory} exists and was not made by this command; choose another --dir")

    def _saved(self) -> dict[str, Any] | None:
        try:
            saved: dict[str, Any] = json.loads((self.directory / _STATE_NAME).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CommandError(f"{self.directory / _STATE_NAME} cannot be read: {error}") from error
        return saved


def _words(mode: str, node_count: int, groups: int) -> str:
    return f"a {mode} cluster of {node_count}" + (f" in {groups} groups" if groups > 1 else "")


def _write_secret(path: Path) -> None:
    partial = path.with_suffix(".partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    partial.replace(path)
