"""What the codec costs per message, in microseconds: one JSON line. `python benchmarks/bench_codec.py [--rounds N]`."""

import argparse
import gc
import json
import mmap
import platform
import sys
import time
from collections.abc import Callable

from ledgermq.message.draft import RecordDraft
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.properties import encode_properties, find_property
from ledgermq.message.record import check_record, dispatch_fields, record_size
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, Command
from ledgermq.remoting.codec.frame import FrameParser, encode, encode_response_head

COUNT = 1000
FRAMES_PER_READ = 180  # what one read of 256 KiB brings
BODY = bytes(range(256)) * 4
UNIQUE_ID = "FD000000000000000000000000000002457D4E0E2F2A69298D1F0000"
PROPERTIES = encode_properties({"KEYS": "order-42", "UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "TagA"})
HOST = encode_host(Host("10.9.8.7", 10911))


def send_frame(header_type: int) -> bytes:
    """A SEND_MESSAGE_V2 as a Java producer sends it, with 1 KiB of body."""
    ext = {
        "a": "WireProducer", "b": "WireTopic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795255530785",
        "h": "0", "i": PROPERTIES.decode(), "j": "0", "k": "false", "m": "false", "n": "golden-w",
    }  # fmt: skip
    request = Command(RequestCode.SEND_MESSAGE_V2, 42, 0, ext, BODY, language="JAVA", header_type=header_type)
    return encode(request)


def draft() -> RecordDraft:
    made = RecordDraft()
    made.topic, made.queue_id, made.flag, made.sys_flag = b"WireTopic", 3, 0, 0
    made.born_timestamp = made.store_timestamp = 1795255530785
    made.born_host, made.reconsume_times, made.prepared_transaction_offset = HOST, 0, 0
    made.body, made.properties, made.tags_code, made.queue_offset = BODY, PROPERTIES, 0, 7
    made.size = record_size(len(BODY), 9, len(PROPERTIES), 0, False)
    return made


def microseconds(work: Callable[[], object], rounds: int, count: int = COUNT) -> float:
    """Best of `rounds`, per unit of `count`: the least disturbed one."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return round(best / count * 1e6, 3)


def measure(rounds: int) -> dict[str, float]:
    json_input, binary_input = (send_frame(kind) * FRAMES_PER_READ for kind in (JSON_HEADER, BINARY_HEADER))
    record = draft()
    log = mmap.mmap(-1, record.size * COUNT)
    positions = range(0, record.size * COUNT, record.size)

    def write_all() -> None:
        for position in positions:
            record.physical_offset = position
            log[position : position + record.size] = b"".join(record.pieces(HOST))

    def answer_all() -> None:
        for opaque in range(COUNT):
            ext = {
                "msgId": offset_message_id(HOST, opaque), "queueId": "3", "queueOffset": str(opaque),
                "transactionId": UNIQUE_ID, "term": "3", "copies": "2", "durableCopies": "2",
            }  # fmt: skip
            encode_response_head(opaque, 0, ext, None, 0)

    return {
        "parse_json_send": microseconds(lambda: FrameParser().feed(json_input), rounds, FRAMES_PER_READ),
        "parse_binary_send": microseconds(lambda: FrameParser().feed(binary_input), rounds, FRAMES_PER_READ),
        "encode_send_answer": microseconds(answer_all, rounds),
        "draft_write_1k": microseconds(write_all, rounds),
        "check_record_1k": microseconds(
            lambda: [check_record(log, p, len(log), check_crc=True) for p in positions], rounds
        ),
        "dispatch_fields": microseconds(lambda: [dispatch_fields(log, p) for p in positions], rounds),
        "find_property": microseconds(lambda: [find_property(PROPERTIES, b"TAGS") for _ in positions], rounds),
        "offset_message_id": microseconds(lambda: [offset_message_id(HOST, p) for p in positions], rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    gc.disable()  # a node freezes its heap and lets the collector run rarely
    result = {
        "benchmark": "codec",
        "unit": "us per message",
        "body_bytes": len(BODY),
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "results": measure(rounds),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
