"""What the Raft log costs per 1 KiB record, in microseconds: one JSON line.

`python benchmarks/bench_raft_log.py [--rounds N]`

leader_append    drafts to entries in the mapping, index units included, in batches of 100
leader_frame     spans of 100 entries to frames, each summed once and sent to two peers
follower_take    a frame's bytes to entries in the follower's mapping: cut, CRC, chain of headers, copy, index
follower_walk    records out of the mapping, as dispatch reads them
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dledger.core.messages import AppendRequest
from dledger.log.commit_checkpoint import CommitCheckpoint
from dledger.log.entry_log import EntryLog
from dledger.log.opening import open_log
from dledger.log.reader import walk_records
from dledger.log.term_start import term_start_draft
from dledger.peers.frame_stream import FrameStream
from dledger.peers.wire import Encoder, decode
from ledgermq.message.draft import RecordDraft
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import record_size

BATCH = 100
BATCHES = 100
BODY = bytes(range(256)) * 4
UNIQUE_ID = "FD000000000000000000000000000002457D4E0E2F2A69298D1F0000"
PROPERTIES = encode_properties({"KEYS": "order-42", "UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "TagA"})
HOST = bytes([10, 9, 8, 7, 0, 0, 42, 159])
FILE_SIZE = 256 << 20


def draft() -> RecordDraft:
    made = RecordDraft()
    made.topic, made.queue_id, made.flag, made.sys_flag = b"WireTopic", 3, 0, 0
    made.born_timestamp, made.born_host, made.reconsume_times, made.prepared_transaction_offset = 1, HOST, 0, 0
    made.body, made.properties, made.tags_code, made.queue_offset = BODY, PROPERTIES, 0, 7
    made.size = record_size(len(BODY), 9, len(PROPERTIES), 0, False)
    return made


def open_entry_log(directory: Path) -> EntryLog:
    opened = open_log(
        directory,
        data_file_size=FILE_SIZE,
        index_file_size=5 << 20,
        allocator=None,
        checkpoint=CommitCheckpoint(),
        intact=True,
    )
    return EntryLog(directory, opened, store_host=HOST, term_start=lambda term: term_start_draft(term, "n0", HOST, 1))


class Taker:
    """The receiving end: what the transport and `RaftLog.on_message` do with a frame, less the core."""

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self.stream = FrameStream(self, 64 << 20)

    def on_open(self, transport: object) -> None: ...

    def on_closed(self, error: Exception | None) -> None: ...

    def on_frame(self, code: int, body: memoryview) -> None:
        message = decode(code, body, "n0")
        assert isinstance(message, AppendRequest) and message.span is not None
        self._log.check(message.span)
        self._log.append_span(message.span)

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            room = self.stream.get_buffer(-1)
            size = min(len(room), len(data) - at, 256 << 10)
            room[:size] = data[at : at + size]
            self.stream.buffer_updated(size)
            at += size


def timed(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / count * 1e6


def measure_once(root: Path) -> dict[str, float]:
    leader, follower = open_entry_log(root / "leader"), open_entry_log(root / "follower")
    drafts = [draft() for _ in range(BATCH)]
    frames: list[list[bytes | memoryview]] = []
    encoder = Encoder()

    def append() -> None:
        for _ in range(BATCHES):
            leader.append_drafts(drafts, 1, 1)

    def encode() -> None:
        at = 0
        while at <= leader.last_index:
            span = leader.read(at, BATCH * (drafts[0].size + 48))
            assert span is not None
            frames.append(encoder.encode(AppendRequest(1, "n0", at - 1, 1, span, 0, 0, 1)))
            encoder.encode(AppendRequest(1, "n0", at - 1, 1, span, 0, 0, 1))
            at = span.last_index + 1

    count = BATCH * BATCHES
    found = {"leader_append": timed(append, count), "leader_frame": timed(encode, count)}
    wire = [b"".join(frame) for frame in frames]
    taker = Taker(follower)
    found["follower_take"] = timed(lambda: taker.feed(b"".join(wire)), count)
    end = follower.max_position
    found["follower_walk"] = timed(lambda: sum(1 for _ in walk_records(follower.data, 0, end)), count)
    assert leader.last_index == follower.last_index == count - 1
    leader.close()
    follower.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    runs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as root:
            runs.append(measure_once(Path(root)))
    best = {name: round(min(run[name] for run in runs), 3) for name in runs[0]}
    print(
        json.dumps({"bench": "raft_log", "unit": "us", **best, "python": platform.python_version(), "rounds": rounds})
    )


if __name__ == "__main__":
    main()
