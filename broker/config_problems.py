"""What only two settings of a broker together can get wrong."""

from collections.abc import Iterator, Sequence

from broker.config import BrokerConfig, LogMode
from ledgermq.message.index_unit import IndexLayout

_COMPACTION_UNIT_FILE_MIN = 4600

Problems = Iterator[tuple[str, str]]
"""`(field, sentence)` of each."""


def config_problems(config: BrokerConfig) -> list[tuple[str, str]]:
    """`(field, sentence)` of each relation between values that does not hold; empty when the node may start."""
    found = [
        *_size_problems(config),
        *_index_problems(config),
        *_compaction_problems(config),
        *_time_problems(config),
        *_port_problems(config),
        *config.tls.problems(),
        *config.auth.problems(),
    ]
    if config.mode is LogMode.RAFT:
        found += _raft_problems(config)
    return found


def _size_problems(config: BrokerConfig) -> Problems:
    body, frame, file = config.max_message_size_bytes, config.max_frame_size_bytes, config.commit_log_file_size_bytes
    if config.consume_queue_file_size_bytes % 20:
        size = config.consume_queue_file_size_bytes
        yield "consume_queue_file_size_bytes", f"{size} is not a multiple of 20, the size of a unit"
    if body * 2 > file:
        yield "max_message_size_bytes", f"{body} is too large: a file of {file} bytes must hold two such messages"
    if body + (1 << 16) > frame:
        yield "max_message_size_bytes", f"{body} is too large: a frame of {frame} bytes must hold it with headers"


def _index_problems(config: BrokerConfig) -> Problems:
    layout = IndexLayout(config.index_slot_count, config.index_entry_count)
    if layout.entries < 2:
        yield "index_entry_count", f"{layout.entries} is too small: entry 0 is never used"
    if layout.file_size >= 1 << 31:
        yield (
            "index_entry_count",
            f"{layout.entries} is too large: files of {layout.file_size} bytes are over 2 GiB",
        )


def _compaction_problems(config: BrokerConfig) -> Problems:
    body, file = config.max_message_size_bytes, config.compaction_log_file_size_bytes
    if body * 2 > file:
        yield (
            "compaction_log_file_size_bytes",
            f"{file} is too small: it must hold two messages of {body} bytes",
        )
    if config.compaction_unit_file_size_bytes < _COMPACTION_UNIT_FILE_MIN:
        size = config.compaction_unit_file_size_bytes
        yield "compaction_unit_file_size_bytes", f"{size} is below {_COMPACTION_UNIT_FILE_MIN}, which is 100 units"


def _time_problems(config: BrokerConfig) -> Problems:
    beat, silence = config.namesrv_heartbeat_interval_ms, config.namesrv_heartbeat_timeout_ms
    if silence < 2 * beat:
        yield "namesrv_heartbeat_timeout_ms", f"{silence} is too short: two heartbeats of {beat} ms must fit"
    beat, silence = config.raft_heartbeat_interval_ms, config.raft_election_timeout_ms
    if silence < 3 * beat:
        yield "raft_election_timeout_ms", f"{silence} is too short: three heartbeats of {beat} ms must fit"


def _port_problems(config: BrokerConfig) -> Problems:
    ports = [("listen_port", config.listen_port), ("health_port", config.health_port or 0)]
    if config.mode is LogMode.RAFT:
        ports += [("raft_peers", peer.port) for peer in config.raft_peers if peer.node_id == config.raft_self_id]
    taken: dict[int, str] = {}
    for name, port in ports:
        if port and taken.setdefault(port, name) != name:
            yield name, f"port {port} is also taken by {taken[port]}"


def _raft_problems(config: BrokerConfig) -> Problems:
    ids = [peer.node_id for peer in config.raft_peers]
    if not config.raft_group:
        yield "raft_group", "is needed in Raft mode"
    if config.raft_self_id not in ids:
        yield "raft_self_id", f"{config.raft_self_id!r} is not among the peers {ids}"
    for node_id in _repeated(ids):
        yield "raft_peers", f"node id {node_id!r} appears twice"
    for address in _repeated([f"{peer.host}:{peer.port}" for peer in config.raft_peers]):
        yield "raft_peers", f"address {address} appears twice"
    if config.preferred_leader is not None and config.preferred_leader not in ids:
        yield "preferred_leader", f"{config.preferred_leader!r} is not among the peers {ids}"


def _repeated(values: Sequence[str]) -> list[str]:
    return sorted({value for value in values if values.count(value) > 1})
