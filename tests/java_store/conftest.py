"""The Java broker's jars, and brokers that are always ended."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.java_store.nodes import Group, Seat
from tests.jvm import rocketmq_jars
from tests.ports import free_ports

IS_LONG = os.environ.get("JAVA_STORE") == "all"
"""`make java-store`: every order of stops and kills, every mode, instead of one round trip of each kind."""
IS_ASKED_FOR = "JAVA_STORE" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            if not IS_ASKED_FOR:
                item.add_marker(pytest.mark.skip(reason="make java-store runs these; JAVA_STORE=one the short ones"))
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of RocketMQ's jars."""
    return rocketmq_jars()


@pytest.fixture
def seat(tmp_path: Path, jars: Path) -> Iterator[Seat]:
    """A place for a broker that stands alone."""
    place = Seat(tmp_path / "broker", free_ports(1)[0], jars, {})
    yield place
    place.kill()


@pytest.fixture
def group(tmp_path: Path, jars: Path) -> Iterator[Group]:
    """Three places for brokers that replicate by Raft."""
    with contextlib.closing(Group(tmp_path, jars)) as three:
        yield three


TurnOrder = tuple[tuple[str, str], ...]


def turn_orders(short: str, long: list[str]) -> Callable[[Callable[..., None]], pytest.MarkDecorator]:
    """Parametrize `order` by texts like `java:stop ours:kill`: `short` always, `long` under `make java-store` too."""
    texts = [short, *long] if IS_LONG else [short]
    orders = [tuple(tuple(turn.split(":")) for turn in text.split()) for text in texts]
    decorator: Callable[[Callable[..., None]], pytest.MarkDecorator] = pytest.mark.parametrize(
        "order", orders, ids=[text.replace(" ", ",") for text in texts]
    )
    return decorator
