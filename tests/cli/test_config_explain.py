import pytest

from node.errors import UsageError
from node.explain import explain


def test_a_key_is_explained_with_type_default_meaning_and_effect() -> None:
    assert explain("flushDiskType") == (
        "flushDiskType: Whether an acknowledgement waits for the disk.\n"
        "  file     broker.conf\n"
        "  type     ASYNC_FLUSH, SYNC_FLUSH\n"
        "  default  <SYNC_FLUSH in Raft mode, else ASYNC_FLUSH> (RocketMQ: ASYNC_FLUSH)\n"
        "  here     in effect. In Raft mode an entry counts for the quorum on a node when it is durable by this rule.\n"
        "  from     RocketMQ's MessageStoreConfig"
    )


def test_a_key_without_effect_says_why() -> None:
    assert "no effect: it tunes Java's threads" in explain("sendMessageThreadPoolNums")
    assert "no effect: belongs to a feature" in explain("timerInterceptDelayLevel")


def test_our_own_keys_say_that_they_are_ours() -> None:
    assert "a key of LedgerMQ's own" in explain("healthPort")


def test_a_key_of_several_files_is_explained_once_for_each_meaning() -> None:
    assert explain("configBlackList").count("configBlackList: ") == 3
    for name in ("listenPort", "bindAddress"):
        assert explain(name).count(f"{name}: ") == 1
        assert "broker.conf and namesrv.conf and controller.conf" in explain(name)
    assert "10911, for a nameserver 9876" in explain("listenPort")


def test_a_live_key_of_a_controller_says_until_when_it_holds() -> None:
    assert "live     updateControllerConfig changes it until the controller stops" in explain("notifyBrokerRoleChanged")


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="key 'brokerIp1' is unknown; nearest known key is 'brokerIP1'"):
        explain("brokerIp1")
