"""Digests of the nodes of a cluster: the first byte that differs is told, a log that begins later is no difference."""

from pathlib import Path
from typing import Any

import pytest

from chaos.fabric.contract import NodeDigest, are_identical
from cli import digest
from cli.digest import digest_brokers


def rows_of(root: Path, logs: dict[str, tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Rows of `cluster status`, with the log files of each node: where its only file begins, and its bytes."""
    for name, (start, data) in logs.items():
        (root / name).mkdir()
        (root / name / f"{start:020d}").write_bytes(data)
    return [{"broker": "b", "name": name, "log": str(root / name), "health": name} for name in logs]


@pytest.fixture(autouse=True)
def _confirm_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "read_gauge", lambda _url, _metric: 8.0)


def test_the_first_byte_that_differs_from_the_first_node_is_told(tmp_path: Path) -> None:
    digests = digest_brokers(
        rows_of(tmp_path, {"n0": (0, b"abcdefgh"), "n1": (0, b"abcdeXgh"), "n2": (0, b"abcdefgh")})
    )
    assert not are_identical(digests)
    assert [one.differs_at for one in digests] == [None, 5, None]


def test_a_node_whose_log_begins_later_has_the_same_log(tmp_path: Path) -> None:
    digests = digest_brokers(rows_of(tmp_path, {"n0": (0, b"abcdefgh"), "n1": (4, b"efgh")}))
    assert are_identical(digests)
    assert [(one.start, one.differs_at) for one in digests] == [(4, None), (4, None)]


def test_logs_that_have_no_byte_in_common_are_not_shown_to_be_identical(tmp_path: Path) -> None:
    digests = digest_brokers(rows_of(tmp_path, {"n0": (0, b"abcdefgh"), "n1": (8, b"")}))
    assert [(one.start, one.end, one.differs_at) for one in digests] == [(8, 8, None), (8, 8, None)]
    assert not are_identical(digests)
    assert are_identical([NodeDigest(name, 0, "aa") for name in ("n0", "n1")]), "both are empty"
