"""A process that may open no more files says so once, as a metric too, and says when it may again."""

import asyncio

import pytest

from telemetry.descriptors import DescriptorWatch
from telemetry.metrics import Registry
from tests.descriptors import limited_descriptors


async def page(registry: Registry) -> dict[str, float]:
    text = b"".join([piece async for piece in registry.page()]).decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


async def test_the_end_of_descriptors_is_told_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry({})
    watch = DescriptorWatch(registry, interval_s=0.01)
    watch.start()
    await asyncio.sleep(0.03)
    assert (await page(registry))["ledgermq_descriptors_exhausted"] == 0
    with limited_descriptors():
        await asyncio.sleep(0.1)
        assert (await page(registry))["ledgermq_descriptors_exhausted"] == 1
    await asyncio.sleep(0.1)
    figures = await page(registry)
    watch.close()
    assert figures["ledgermq_descriptors_exhausted"] == 0
    assert 0.05 < figures["ledgermq_descriptors_exhausted_seconds_total"] < 10
    told = [record.message.split(",")[0].split(" (")[0] for record in caplog.records]
    assert told == ["no file descriptor is left", "files can be opened again"]
