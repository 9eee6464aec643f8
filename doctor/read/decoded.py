"""A record as text for people and as JSON."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dledger.log.entry import HEADER_SIZE
from doctor.read.framing import Frame
from ledgermq.message.errors import MessageFormatError
from ledgermq.message.record import Record, decode_record

_PREVIEW_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Found:
    """A frame and its place. `position` counts from the file's first byte, `offset` from the log's."""

    frame: Frame
    file: Path
    position: int
    offset: int

    @property
    def physical_offset(self) -> int:
        """Physical offset of the record: in DLedger that of the entry plus its header."""
        return self.offset + (HEADER_SIZE if self.frame.entry_index >= 0 else 0)

    @property
    def end(self) -> int:
        """Offset of the frame's end."""
        return self.offset + self.frame.size

    def decode(self) -> Record | None:
        """Return the record; None where bodies are not records, or its fields cannot be read."""
        try:
            return decode_record(self.frame.record, check_crc=False) if self.frame.record else None
        except MessageFormatError:
            return None


def as_json(found: Found, record: Record | None, *, body: str = "text") -> dict[str, Any]:
    """Return all fields. `body`: text (invalid UTF-8 becomes U+FFFD), base64, or none."""
    line: dict[str, Any] = {"physical_offset": found.physical_offset}
    if found.frame.entry_index >= 0:
        line |= {"entry_index": found.frame.entry_index, "term": found.frame.term}
    if record is not None:
        line |= _fields(record)
    content = record.body if record is not None else found.frame.record
    if body == "text":
        line["body"] = content.decode(errors="replace")
    elif body == "base64":
        line["body"] = base64.b64encode(content).decode()
    if found.frame.fault is not None:
        line["fault"] = found.frame.fault
    return line


def as_text(found: Found, record: Record | None) -> str:
    """Return one line for a person."""
    damaged = f"  DAMAGED: {found.frame.fault}" if found.frame.fault is not None else ""
    if record is None:
        return f"{found.physical_offset:>14}  {found.frame.size} bytes{damaged}"
    moment = datetime.fromtimestamp(record.store_timestamp / 1000) if 0 < record.store_timestamp < 1 << 43 else None
    stamp = f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] if moment is not None else str(record.store_timestamp)
    term = f" t{found.frame.term}" if found.frame.term >= 0 else ""
    body = record.body.decode(errors="replace")
    shown = body[:_PREVIEW_CHARACTERS] + ("…" if len(body) > _PREVIEW_CHARACTERS else "")
    extra = "".join(
        f"  {name}={value}" for name, value in (("tags", record.tags), ("keys", " ".join(record.keys))) if value
    )
    place = f"{record.topic}/{record.queue_id} @{record.queue_offset}"
    return f"{stamp}  {found.physical_offset:>12}{term}  {place}{extra}  {shown!r}{damaged}"


def _fields(record: Record) -> Mapping[str, Any]:
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "size": record.size,
        "store_timestamp": record.store_timestamp,
        "born_timestamp": record.born_timestamp,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "message_id": record.offset_message_id,
        "unique_id": record.unique_id,
        "tags": record.tags,
        "keys": record.keys,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "properties": record.property_map,
    }
