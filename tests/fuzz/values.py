"""Values that are nearly right, drawn from one random source: numbers, names, properties, SQL, JSON, bytes."""

import functools
import json
import random
import struct
import zlib
from typing import Any, Final

from tests.fuzz.bodies import GROUP, TOPIC, batch_entry

NUMBERS: Final = (
    "0", "1", "-1", "4", "7", "-0", "+1", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e3", "0x10", "1.0", " 1", "1_0", "٣",
    "NaN", "", "x", "9" * 5000, "true", "null",
)  # fmt: skip
NAMES: Final = (
    TOPIC, TOPIC, TOPIC, GROUP, "FuzzNew", "%RETRY%FuzzGroup", "%DLQ%FuzzGroup", "TBW102", "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_ledgermq_state", "rmq_sys_REVIVE_LOG_DefaultCluster",
    "%LMQ%a", "../../etc", "a/b", ".", "", " ", "a b", "a.b", "a" * 127, "a" * 128, "a" * 300, "ümlaut", "\x00",
    "\x01", "\ud800", "{}", "%s%n", "$topic", "a|b", "*", "DefaultCluster", "broker-a", "null",
)  # fmt: skip
PROPERTY_NAMES: Final = (
    "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TRAN_MSG",
    "PGROUP", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "CLUSTER", "MSG_REGION", "INNER_NUM", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET", "REPLY_TO_CLIENT", "CORRELATION_ID", "TTL", "POP_CK", "1ST_POP_TIME", "CHECK_TIMES",
    "MAX_RECONSUME_TIMES", "RECONSUME_TIME", "ORIGIN_MESSAGE_ID", "__CRC32#", "TIMER_DEL_UNIQKEY", "TIMER_OUT_MS",
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "__SHARDINGKEY", "DUP_INFO", "EXTEND_UNIQ_INFO", "a", "",
)  # fmt: skip
_SQL_WORDS: Final = (
    "a", "b", "TAGS", "_x", "1", "0", "-1", "1.5", "1e400", "9223372036854775808", "0x7F", "'s'", "'it''s'", "''",
    "TRUE", "FALSE", "NULL", "=", "<>", ">", ">=", "<", "<=", "AND", "OR", "NOT", "IS", "IS NOT NULL", "IS NULL", "IN",
    "NOT IN", "('x','y')", "BETWEEN", "1 AND 5", "NOT BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH", "(", ")", ",",
    "+", "-", "*", "/", "%", "--c\n", "/*c*/", "/*", "'", "\"q\"", ";", "\x00", "ü", "LIKE", "ESCAPE",
)  # fmt: skip
_JSON_ODDITIES: Final = (
    b"{", b"[", b"", b"null", b"7", b'"s"', b"{}", b"[]", b"\xff\xfe", b"[" * 5000, b'{"a":' * 3000, b"{{" * 400,
    b'{"a":1}x', b"1e999", b"-", b"9" * 3000, b'{"$ref":"$"}', b'{"@type":"java.lang.Class","val":"x"}', b"{1:2,}",
    b"{a:1}", b"{'a':1}", b'"\\ud800"', b"{1:" * 60 + b"1" + b"}" * 60, b"//c\n{}", b'{"a":18446744073709551616}',
    b'{"a":NaN}', b"[" + b"1," * 20000 + b"1]", b"{" + b'"k":1,' * 5000 + b'"k":1}', b"\xef\xbb\xbf{}", b"\x00" * 40,
)  # fmt: skip


@functools.cache
def _bomb(size: int) -> bytes:
    packer, block = zlib.compressobj(1), bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


_SQL_BOMBS: Final = (
    "(" * 300, "NOT " * 500 + "a", "a=1 OR " * 900 + "a=1", "-" * 200 + "1", "a=" * 200,
    "a IN (" + "'x'," * 4000 + "'x')",
)  # fmt: skip


class Values:
    """Draws values; the same seed draws the same ones."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def number(self) -> str:
        if self.chance(0.3):
            return str(self.random.choice((1, -1)) * (1 << self.random.randrange(70)) + self.random.randrange(-2, 3))
        return self.random.choice(NUMBERS)

    def name(self) -> str:
        return self.random.choice(NAMES)

    def text(self) -> str:
        draw = self.random.randrange(8)
        if draw == 0:
            return self.number()
        if draw == 1:
            return self.properties()
        if draw == 2:
            return self.sql()
        if draw == 3:
            return self.handle()
        if draw == 4:
            return "".join(chr(self.random.randrange(1, 0x2FF)) for _ in range(self.random.randrange(40)))
        if draw == 5:
            return "x" * self.random.choice((32_767, 32_768, 65_536, 300))
        return self.name()

    def properties(self) -> str:
        entries = []
        for _ in range(self.random.choice((0, 1, 2, 3, 5, 40))):
            name = self.random.choice(PROPERTY_NAMES)
            entries.append(name + self.random.choice(("\x01",) * 9 + ("",)) + self.property_value(name))
        return self.random.choice(("\x02",) * 9 + ("\x01", "")).join(entries) + self.random.choice(("\x02", ""))

    def property_value(self, name: str) -> str:
        if name.startswith("TIMER_D") and self.chance(0.4):
            return str(self.random.choice((1, 50, 1_000, 1_700_000_000_000, 4_000_000_000_000)))
        return self.number() if self.chance(0.5) else self.name()

    def sql(self) -> str:
        draw = self.random.random()
        if draw < 0.1:
            return self.random.choice(_SQL_BOMBS)
        count = self.random.choice((1, 2, 3, 5, 8, 13, 21))
        return self.random.choice((" ", " ", "")).join(self.random.choice(_SQL_WORDS) for _ in range(count))

    def handle(self) -> str:
        words = ["0", "1700000000000", "60000", "0", "0", "broker-a", "0", "0", "0"]
        for _ in range(self.random.randrange(3)):
            words[self.random.randrange(len(words))] = self.random.choice((self.number(), self.name()))
        return self.random.choice((" ", " ", " ", "", "  ")).join(words[: self.random.randrange(4, 10)])

    def json(self, base: bytes) -> bytes:
        """A JSON body, or something like it, that began as `base`."""
        draw = self.random.random()
        if draw < 0.25:
            return self.random.choice(_JSON_ODDITIES)
        try:
            value = json.loads(base)
        except ValueError:
            return self.damaged(base)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            value = self._changed(value)
        text = json.dumps(value, ensure_ascii=self.chance(0.5)).encode(errors="surrogatepass")
        return self.damaged(text) if draw < 0.4 else text

    def _changed(self, value: Any) -> Any:
        if self.chance(0.3) or not isinstance(value, dict | list) or not value:
            return self._odd_value(value)
        if isinstance(value, list):
            at = self.random.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        key = self.random.choice(list(value))
        rest = {name: member for name, member in value.items() if name != key}
        if self.chance(0.2):
            return rest
        return {**rest, key: self._changed(value[key])}

    def _odd_value(self, value: Any) -> Any:
        deep: Any = 1
        for _ in range(self.random.randrange(80)):
            deep = {"a": deep} if self.chance(0.5) else [deep]
        return self.random.choice((
            None, 0, -1, 1 << 31, 1 << 63, 1 << 70, 1.5, True, "", [], {}, self.name(), self.text(), [value],
            {"a": value}, [value] * 50, deep, [None], {"": None}, str(value)[:300],
        ))  # fmt: skip

    def damaged(self, data: bytes) -> bytes:
        """Bytes that began as these."""
        if not data:
            return self.random.randbytes(self.random.randrange(64))
        out = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            at = self.random.randrange(len(out) + 1)
            draw = self.random.randrange(5)
            if draw == 0:
                del out[at : at + self.random.choice((1, 2, 4, 1 << 10))]
            elif draw == 1:
                out[at:at] = self.random.randbytes(self.random.choice((1, 4, 40)))
            elif draw == 2 and at < len(out):
                out[at] ^= 1 << self.random.randrange(8)
            elif draw == 3:
                number = self.random.choice((0, -1, 1, 1 << 30, (1 << 31) - 1, -(1 << 31), len(out), 0x7FFF))
                out[at : at + 4] = struct.pack(">i", number)
            else:
                out[at:at] = out[: self.random.randrange(1 << 10)]
            if not out:
                break
        return bytes(out)

    def batch(self) -> bytes:
        body = b"".join(
            batch_entry(b"x" * self.random.choice((0, 1, 200)), self.properties().encode(errors="replace")[:30_000])
            for _ in range(self.random.randrange(6))
        )
        return self.damaged(body) if self.chance(0.7) else body

    def deflated(self) -> bytes:
        """A registration of the sized form, whole, damaged, or a bomb."""
        draw = self.random.random()
        if draw < 0.1:
            return _bomb(self.random.choice((1 << 20,) * 8 + (1 << 23, 1 << 28)))
        parts = [b'{"counter":1,"stateVersion":0,"timestamp":1}']
        topics = [f"T{n} 4 4 6 SINGLE_TAG {{}}".encode() for n in range(self.random.randrange(4))]
        raw = struct.pack(">i", len(parts[0])) + parts[0] + struct.pack(">i", len(topics))
        raw += b"".join(struct.pack(">i", len(topic)) + topic for topic in topics)
        raw += struct.pack(">i", 2) + b"[]" + struct.pack(">i", 0)
        packed = zlib.compress(self.damaged(raw) if self.chance(0.7) else raw)
        return self.damaged(packed) if self.chance(0.3) else packed
