"""SHA-256 of each node's log up to its confirm offset, to compare the logs of all nodes.

The nodes give their confirm offsets; the bytes are read from their folders by code that shares nothing with the code
that wrote them. The offsets move while clients write and while consumer offsets are stored in the log, so the functions
wait until the nodes agree.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.checkers.logs import LogDigest, LogFilesError, digest_log, first_difference
from chaos.fabric.contract import NodeDigest
from cli.health import read_gauge
from node.errors import CommandError

CONFIRM_OFFSET_METRIC = "ledgermq_log_confirm_offset_bytes"
_AGREE_LIMIT_S = 30.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The folder of one node's log files, and the URL of its health port."""

    name: str
    directory: Path
    health_url: str


def digest_directory(
    directory: Path, *, start: int | None = None, end: int | None = None, health_url: str | None = None
) -> LogDigest:
    """Hash one folder of log files from `start`, or the first byte kept, up to `end` or a node's confirm offset.

    Raises:
        CommandError: the folder does not have those bytes, or the node does not answer.
    """
    if end is None:
        if health_url is None:
            raise CommandError("the end of the digest is missing: give --end or --node")
        end = int(read_gauge(health_url, CONFIRM_OFFSET_METRIC))
    try:
        return digest_log(directory, end, start)
    except (LogFilesError, OSError) as error:
        raise CommandError(str(error)) from error


def digest_brokers(rows: Sequence[Mapping[str, Any]]) -> list[NodeDigest]:
    """Hash the log of each broker in the answer of `cluster status`, those of one broker name up to one offset.

    Raises:
        CommandError: see `digest_directory`.
    """
    logs: dict[str, list[NodeLog]] = {}
    for row in rows:
        logs.setdefault(row["broker"], []).append(NodeLog(row["name"], Path(row["log"]), row["health"]))
    return [found for broker, nodes in logs.items() for found in _compared(broker, nodes)]


def _compared(broker: str, nodes: Sequence[NodeLog]) -> list[NodeDigest]:
    """Return the digests of the nodes of one broker name, each with the first byte that differs from the first node."""
    digests, (first, *_) = [digest for _, digest in digest_nodes(nodes)], nodes
    found = []
    for node, digest in zip(nodes, digests, strict=True):
        differs_at = None
        if digest.sha256 != digests[0].sha256:
            try:
                differs_at = first_difference(first.directory, node.directory, max(digest.end, digests[0].end))
            except (LogFilesError, OSError) as error:
                raise CommandError(str(error)) from error
        found.append(NodeDigest(node.name, digest.end, digest.sha256, digest.start, broker, differs_at))
    return found


def digest_nodes(nodes: Sequence[NodeLog]) -> list[tuple[str, LogDigest]]:
    """Return one digest for each node, at a confirm offset that all have; after 30 s, each at its own.

    They begin at the highest begin of the logs, since cleaning and new disks do not count as differences.
    """
    deadline = time.monotonic() + _AGREE_LIMIT_S
    while True:
        is_last = time.monotonic() > deadline
        try:
            ends = [int(read_gauge(node.health_url, CONFIRM_OFFSET_METRIC)) for node in nodes]
        except CommandError:
            if is_last:
                raise
            ends = []  # a node may just have been started
        if len(set(ends)) == 1 or (ends and is_last):
            whole = [digest_directory(node.directory, end=end) for node, end in zip(nodes, ends, strict=True)]
            start = max(digest.start for digest in whole)
            return [
                (
                    node.name,
                    digest if digest.start == start else digest_directory(node.directory, start=start, end=digest.end),
                )
                for node, digest in zip(nodes, whole, strict=True)
            ]
        time.sleep(_POLL_S)
