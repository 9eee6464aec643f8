"""A task leaves its client to the next one of its worker process; nobody else gets it."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from ledgermq.spark import topic_client
from ledgermq.spark.numbered import LaneCaller
from ledgermq.spark.topic_client import Access, AccessAdmin, Fetches, Opened, TopicClient
from tests.spark.conftest import RunningBroker
from tests.spark.test_topic_sink import writer
from tests.spark.test_topic_source import outgoing, reader, rows_of

ACCESS = Access("127.0.0.1:1")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has no clients yet."""
    monkeypatch.setattr(topic_client, "_left", {})
    yield
    for left in topic_client._left.values():
        for each in left.values():
            each.close()


def is_open(opened: Opened[Any]) -> bool:
    return opened._thread._thread.is_alive()


def test_a_block_leaves_its_client_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Opened.kept(AccessAdmin, ACCESS) as first, Opened.kept(AccessAdmin, ACCESS) as beside:
        assert first.client is not beside.client
    with Opened.kept(AccessAdmin, ACCESS) as again:
        assert again is first
        assert not is_open(beside)
    for other in (Access("127.0.0.1:1", access_key="k", secret_key="s"), Access("127.0.0.1:1", tls=True)):
        with Opened.kept(AccessAdmin, other) as opened:
            assert opened is not first
    with Opened.kept(LaneCaller, ACCESS) as caller, Opened(AccessAdmin, ACCESS) as own:
        assert own is not first
    assert is_open(caller)
    assert not is_open(own)
    with pytest.raises(ZeroDivisionError), Opened.kept(AccessAdmin, ACCESS) as failed:
        assert failed is first
        raise ZeroDivisionError
    assert not is_open(failed)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with Opened.kept(LaneCaller, ACCESS) as forked:
        assert forked is not caller


def test_few_are_left_and_the_oldest_is_closed() -> None:
    left = []
    for number in range(6):
        with Opened.kept(AccessAdmin, Access(f"127.0.0.1:{number + 1}")) as opened:
            left.append(opened)
    assert [is_open(each) for each in left] == [False, False, True, True, True, True]


def test_none_is_left_that_is_older_than_ten_minutes() -> None:
    left = []
    for number in range(3):
        with Opened.kept(AccessAdmin, Access(f"127.0.0.1:{number + 1}")) as opened:
            opened._made_s -= (590, 610, 0)[number]
            left.append(opened)
            assert is_open(opened), "a block may use its client however old that is"
    assert [is_open(each) for each in left] == [True, False, True]
    left[0]._made_s -= 20
    with Opened.kept(AccessAdmin, Access("127.0.0.1:3")) as opened:
        assert opened is left[2]
    assert [is_open(each) for each in left] == [False, False, True]
    left[2]._made_s -= 610
    with Opened.kept(AccessAdmin, Access("127.0.0.1:3")) as opened:
        assert opened is not left[2]
    assert not is_open(left[2])


def test_tasks_that_read_and_write_share_clients_and_other_blocks_do_not(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("Kept", 1)
    broker.send("Kept", outgoing(50))
    plain = writer(broker.namesrv, "body binary", topic="Kept")
    numbered = writer(broker.namesrv, "body binary", topic="Kept", idempotent="true", writeId="w")
    assert not topic_client._idle()
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))
    read = reader(broker, subscribe="Kept")
    left: list[list[Opened[Any]]] = []
    for _ in range(2):
        for made in (plain, numbered):
            body = pa.array([b"000050"], pa.binary())
            made.write(iter([pa.RecordBatch.from_arrays([body], ["body"])]))
        assert len(rows_of(read, read.partitions())) > 50
        left.append(list(topic_client._idle().values()))
    assert left[0] == left[1]
    assert len(left[0]) == 3
    with TopicClient(Access(broker.namesrv), kept=True) as client:
        assert client._opened in left[0]
        assert client.fetches == Fetches(), "those of an earlier task would be counted twice"
