"""Every recorded frame of upstream's wire decodes to what upstream says, and encodes back to the same bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.codec.command import BINARY_HEADER, Command
from ledgermq.remoting.codec.frame import FrameParser, encode

WIRE = Path(__file__).parents[1] / "golden" / "wire"
FRAMES = sorted(path for path in WIRE.rglob("*.bin") if (path.parent / "exchange.json").exists())
FOLDERS = sorted({path.parents[1] for path in FRAMES})
"""Of one request, in one form of header, mostly."""


def _summary(command: Command) -> dict[str, Any]:
    summary = {
        "serializeType": "ROCKETMQ" if command.header_type == BINARY_HEADER else "JSON",
        "code": command.code,
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "extFields": dict(command.ext),
        "bodyLength": len(command.body),
    }
    return summary | ({"bodySha256": hashlib.sha256(command.body).hexdigest()} if command.body else {})


def test_there_are_hundreds_of_frames() -> None:
    assert len(FRAMES) > 700


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(WIRE)))
def test_decodes_and_encodes_back(folder: Path) -> None:
    for path in (path for path in FRAMES if path.parents[1] == folder):
        data = path.read_bytes()
        manifest: dict[str, Any] = json.loads((path.parent / "exchange.json").read_text())[path.stem]
        (command,) = FrameParser().feed(data)

        # an empty value in a binary header reads as null: a missing field, which cannot be written again
        expected_ext = manifest["extFields"] or {}
        present = {key: value for key, value in expected_ext.items() if value is not None}

        summary = _summary(command)
        assert summary == {key: manifest[key] for key in summary} | {"extFields": present}, path
        if present == expected_ext:
            assert encode(command) == data, path
