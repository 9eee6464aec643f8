"""RocketMQ's Java client in a drill: what its answers mean, and what is said where it is not installed."""

import asyncio
import base64
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.drills.java_client import JavaProducer, java_command
from ledgermq.client import LedgerMQError, SendStatus
from node.errors import UsageError


async def test_answers_of_the_driver_are_results_refusals_and_unknown_outcomes() -> None:
    asked: list[bytes] = []
    answers = asyncio.StreamReader()
    process: Any = SimpleNamespace(stdin=SimpleNamespace(write=asked.append), stdout=answers)
    producer = JavaProducer(process, "t")
    sends = [asyncio.ensure_future(producer.send("t", b"body %d" % number)) for number in range(5)]
    reading = asyncio.ensure_future(producer.take_answers())
    await asyncio.sleep(0)
    assert asked == [b"%d %s\n" % (number, base64.b64encode(b"body %d" % number)) for number in range(5)]
    answers.feed_data(
        b"@ A 1 SLAVE_NOT_AVAILABLE 3 broker-a 0 7\n@ F 2 No route info of this topic\n@ A 0 SEND_OK 3 broker-a 5 9\n"
    )
    answers.feed_data(b"02:22:07,959 |-INFO in the logging\n@ I 3 sendDefaultImpl call timeout\n")
    answers.feed_eof()
    stored, weak, refused, unknown, unanswered = await asyncio.gather(*sends, return_exceptions=True)
    await reading
    assert not isinstance(stored, BaseException) and not isinstance(weak, BaseException)
    assert (stored.queue, stored.queue_offset, stored.attempts) == (("t", "broker-a", 5), 9, 3)
    assert (stored.status, weak.status) == (SendStatus.OK, SendStatus.SLAVE_NOT_AVAILABLE)
    for error, is_known in ((refused, True), (unknown, False), (unanswered, False)):
        assert isinstance(error, LedgerMQError) and error.outcome_known is is_known, error


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/java")
    monkeypatch.setenv("ROCKETMQ_JARS", str(tmp_path))
    with pytest.raises(UsageError, match=r"needs the jars of rocketmq-client .*/peers/rocketmq jars"):
        java_command()
    (tmp_path / "rocketmq-client-5.3.3.jar").touch()
    assert f"{tmp_path}/*" in java_command()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="needs a JDK, 17 or newer: apt install"):
        java_command()
