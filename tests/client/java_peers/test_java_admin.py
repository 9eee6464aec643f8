"""Administration of the real Java broker and nameserver."""

from tests.client import administering
from tests.client.reading import fresh


async def test_topics(java_broker: str) -> None:
    await administering.topics(java_broker, fresh("T"))


async def test_groups(java_broker: str) -> None:
    await administering.groups(java_broker, fresh("g"))


async def test_our_consumers_answer_the_java_broker_and_follow_its_reset(java_broker: str) -> None:
    await administering.consumers(java_broker, fresh("T"))


async def test_offsets(java_broker: str) -> None:
    await administering.offsets(java_broker, fresh("T"))


async def test_messages_and_dead_letters(java_broker: str) -> None:
    await administering.messages(java_broker, fresh("T"))


async def test_settings_values_and_permissions(java_broker: str) -> None:
    await administering.settings(java_broker, fresh("k"))
