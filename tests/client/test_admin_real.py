"""Administration of a real cluster in this process."""

import pytest

from ledgermq.client import Admin, Policy
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError
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
        with pytest.raises(InvalidArgumentError, match="no settings"):
            await admin.update_broker_config("b", {})
        with pytest.raises(InvalidArgumentError, match="a=b"):
            await admin.update_broker_config("b", {"a=b": "c"})
        with pytest.raises(InvalidArgumentError, match="middle"):
            await admin.reset_offsets("g", "T", "middle")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="separate"):
            await admin.create_topic("T", attributes={"a": "b,c"})


async def test_users_and_policies_are_made_changed_and_deleted(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_user("alice", "secret-1")
        await admin.update_user("alice", enabled=False)
        (alice,) = await admin.users("ali")
        assert (alice.name, alice.kind, alice.is_enabled) == ("alice", "Normal", False)
        may_send = Policy("Topic:orders", ("Pub",), ("10.0.0.0/8",))
        await admin.create_policies("User:alice", [may_send, Policy("Group:*", ("Sub",), is_allowed=False)])
        policies = (await admin.policies("alice"))["User:alice"]
        assert may_send in policies
        assert Policy("Group:*", ("Sub",), (), is_allowed=False) in policies
        await admin.update_policies("User:alice", [Policy("Topic:orders", ("Pub", "Sub"))])
        assert Policy("Topic:orders", ("Pub", "Sub")) in (await admin.policies("alice"))["User:alice"]
        await admin.delete_policies("User:alice", "Topic:orders")
        (left,) = (await admin.policies("alice"))["User:alice"]
        assert left.resource == "Group:*"
        await admin.delete_policies("User:alice")
        await admin.delete_user("alice")
        assert (await admin.users(), await admin.policies()) == ((), {})
        with pytest.raises(LedgerMQError):
            await admin.update_user("nobody", password="x")
