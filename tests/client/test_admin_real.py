"""Administration of a real cluster in this process."""

import pytest

from ledgermq.client import Admin
from ledgermq.client.errors import InvalidArgumentError
from tests.client import administering


async def test_topics_are_made_listed_changed_and_deleted(namesrv: str) -> None:
    await administering.topics(namesrv, "T")


async def test_groups_are_made_listed_changed_and_deleted(namesrv: str) -> None:
    await administering.groups(namesrv, "g")


async def test_consumers_answer_administrators_and_follow_a_reset(namesrv: str) -> None:
    await administering.consumers(namesrv, "T")


async def test_offsets_are_reset_set_and_cloned(namesrv: str) -> None:
    await administering.offsets(namesrv, "T")


async def test_messages_are_found_and_dead_letters_sent_again(namesrv: str) -> None:
    await administering.messages(namesrv, "T")


async def test_settings_values_and_permissions(namesrv: str) -> None:
    await administering.settings(namesrv, "k")


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        with pytest.raises(InvalidArgumentError, match="colour"):
            await admin.update_group("g", colour="red")
        with pytest.raises(InvalidArgumentError, match="no settings"):
            await admin.update_broker_config("b", {})
        with pytest.raises(InvalidArgumentError, match="a=b"):
            await admin.update_broker_config("b", {"a=b": "c"})
        with pytest.raises(InvalidArgumentError, match="middle"):
            await admin.reset_offsets("g", "T", "middle")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="separate"):
            await admin.create_topic("T", attributes={"a": "b,c"})
