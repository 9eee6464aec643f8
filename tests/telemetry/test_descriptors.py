"""A process that may open no more files says so once, as a metric too, and says when it may again."""

import asyncio
import time

import pytest

from telemetry.descriptors import DescriptorWatch
from telemetry.metrics import Registry
from tests.descriptors import limited_descriptors
from tests.limits import WAIT_S


async def page(registry: Registry) -> dict[str, float]:
    text = b"".join([piece async for piece in registry.page()]).decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


async def until(registry: Registry, exhausted: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await page(registry))["ledgermq_descriptors_exhausted"] != exhausted:
            await asyncio.sleep(0.01)


async def test_the_end_of_descriptors_is_told_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry({})
    watch = DescriptorWatch(registry, interval_s=0.01)
    watch.start()
    await asyncio.sleep(0.03)
    assert (await page(registry))["ledgermq_descriptors_exhausted"] == 0
    began = time.monotonic()
    with limited_descriptors():
        await until(registry, 1)
        seen = time.monotonic()
        await asyncio.sleep(0.1)
        at_least = time.monotonic() - seen
    await until(registry, 0)
    watch.close()
    seconds = (await page(registry))["ledgermq_descriptors_exhausted_seconds_total"]
    assert at_least < seconds < time.monotonic() - began
    told = [record.message.split(",")[0].split(" (")[0] for record in caplog.records]
    assert told == ["no file descriptor is left", "files can be opened again"]
