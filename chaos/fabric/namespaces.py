"""A network of its own for a cluster: a namespace and an address for each node, joined by a bridge, cut by iptables.

    this process's namespace: bridge 10.83.0.1 --- veth --- 10.83.0.100 in the namespace of n0
                                               '-- veth --- 10.83.0.101 in the namespace of n1     ...

The namespaces have no names and no mounts: open descriptors of this process hold them. The kernel removes namespaces,
bridge and rules with the last process in them.
"""

import ctypes
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos.fabric.disk import run_command
from node.errors import CommandError

INSTALL = "apt install iproute2 iptables util-linux"
CLIENTS, GATEWAY = "clients", "10.83.0.1"
"""Name and address for everything that is not a node."""
_CLONE_NEWNET = 0x40000000
_BRIDGE = "bridge"
_SILENCE_S = 0.25


def own_network() -> None:
    """Give this process a network namespace of its own; call it before the process has threads.

    Raises:
        CommandError: it is not permitted, or a program is missing; the text says what helps.
    """
    for command in ("ip", "iptables", "nsenter"):
        if shutil.which(command) is None:
            raise CommandError(f"namespaces need {command}: {INSTALL}")
    _unshare_network()
    run_command("ip", "link", "set", "lo", "up")


def enter_network(pid: int) -> None:
    """Move this thread, and threads that it starts from now on, into the network namespace of a process.

    Raises:
        CommandError: there is no such process, or it is not permitted.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(f"the network of process {pid} cannot be entered: {error.strerror}") from error
    try:
        _set_network(descriptor)
    finally:
        os.close(descriptor)


class Namespaces:
    """The namespaces of one cluster. Its calls block; use one thread at a time.

    Args:
        addresses: `host:port` of a listener of each node, by name; the hosts are in 10.83.0.0/24.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._hosts = {CLIENTS: GATEWAY} | {name: at.rpartition(":")[0] for name, at in addresses.items()}
        self._descriptors: dict[str, int] = {}
        self._cut: set[tuple[str, str]] = set()

    def create(self) -> None:
        """Create the bridge, and a namespace for each node.

        Raises:
            CommandError: a command fails.
        """
        run_command("ip", "link", "add", _BRIDGE, "type", "bridge")
        run_command("ip", "addr", "add", f"{GATEWAY}/24", "dev", _BRIDGE)
        run_command("ip", "link", "set", _BRIDGE, "up")
        for name in self._addresses:
            self._descriptors[name] = _in_new_thread(_new_network)
            run_command(
                "ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", self._path(name)
            )
            run_command("ip", "link", "set", name, "master", _BRIDGE, "up")
            self._run_in(name, "ip", "addr", "add", f"{self._hosts[name]}/24", "dev", "eth0")
            self._run_in(name, "ip", "link", "set", "eth0", "up")
            self._run_in(name, "ip", "link", "set", "lo", "up")

    def argv(self, name: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in a node's namespace."""
        return ["nsenter", f"--net={self._path(name)}", *argv]

    def cut(self, pairs: Sequence[str]) -> str:
        """Drop every packet from A to B, for each pair `A>B`; return the proof.

        Raises:
            CommandError: there is no such node, or connections still succeed.
        """
        ways = self._ways(pairs)
        for way in ways:
            self._change("-I", way)
            self._cut.add(way)
        with ThreadPoolExecutor(len(ways)) as threads:  # each thread ends in the namespace that it has entered
            reached = list(threads.map(lambda way: self._reaches(way, _SILENCE_S), ways))
        if any(reached):
            raise CommandError(f"{'>'.join(ways[reached.index(True)])} still connects after it was cut")
        return f"no connection was made in {len(ways)} directions within {1000 * _SILENCE_S:.0f} ms"

    def heal(self, pairs: Sequence[str]) -> str:
        """Let packets from A to B pass again, for each pair `A>B`; without pairs, everywhere. Return the proof.

        Raises:
            CommandError: there is no such node, or iptables fails.
        """
        ways = [way for way in self._ways(pairs) if way in self._cut] if pairs else sorted(self._cut)
        for way in ways:
            self._change("-D", way)
            self._cut.discard(way)
        return f"iptables drops nothing in {len(pairs) or 'all'} directions"

    def _ways(self, pairs: Sequence[str]) -> list[tuple[str, str]]:
        ways = []
        for pair in pairs:
            source, _, target = pair.partition(">")
            if source not in self._hosts or target not in self._addresses or source == target:
                raise CommandError(
                    f"there is no way {pair!r}: write SOURCE>TARGET with two of {', '.join(self._hosts)}"
                )
            ways.append((source, target))
        return ways

    def _change(self, how: str, way: tuple[str, str]) -> None:
        if how == "-I" and way in self._cut:
            return
        source, target = way
        self._run_in(target, "iptables", "-w", how, "INPUT", "-s", self._hosts[source], "-j", "DROP")

    def _reaches(self, way: tuple[str, str], limit_s: float) -> bool:
        """Return whether `source` gets any answer when it connects to `target`, also a refusal."""
        source, target = way
        if source != CLIENTS:
            _set_network(self._descriptors[source])
        host, _, port = self._addresses[target].rpartition(":")
        try:
            socket.create_connection((host, int(port)), limit_s).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptors[name]}"

    def _run_in(self, name: str, *words: str) -> None:
        run_command(*self.argv(name, words))


def _in_new_thread(work: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _new_network() -> int:
    """Create a namespace and leave this thread in it; return the descriptor that holds it."""
    _unshare_network()
    return os.open(Path("/proc/thread-self/ns/net"), os.O_RDONLY | os.O_CLOEXEC)


def _unshare_network() -> None:
    _require(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET))


def _set_network(descriptor: int) -> None:
    _require(ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET))


def _require(result: int) -> None:
    if result != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CommandError(f"namespaces need the rights of root: run it by sudo ({reason})")
