from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dledger.config import PeerAddress
from ledgermq.remoting.config_key import Key
from ledgermq.remoting.proof import SecretFileError
from node.config import load_broker_config, load_nameserver_config
from node.keys import BROKER_KEYS, NAMESRV_KEYS
from node.node_config import LogMode, NodeConfig
from node.properties import ConfigError
from node.store_settings import master_config, raft_config
from store.log.flusher import FlushMode

SYNC = {"brokerRole": "SYNC_MASTER"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:10912"}
ACL = {"authenticationEnabled": "true"}
RAFT = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "broker-a",
    "dLegerPeers": "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911",
    "dLegerSelfId": "n1",
    "dLegerPeerSecretFile": "/etc/ledgermq/peer-secret",
}


def words(settings: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def broker(**settings: str) -> NodeConfig:
    return load_broker_config(None, words({"bindAddress": "127.0.0.1"} | settings))


def problems(**settings: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        broker(**settings)
    return caught.value.problems


@pytest.mark.parametrize("mode", [SYNC, SLAVE, RAFT | {"dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"}])
def test_replicas_that_check_users_need_a_secret_for_their_passwords(mode: dict[str, str]) -> None:
    mode = mode | ACL
    mode.pop("dLegerPeerSecretFile", None)
    (found,) = problems(**mode)
    assert "'passwordKeyFile' is needed" in found
    assert broker(**mode, plainPasswords="true").broker.auth.plain_passwords
    assert broker(**mode, passwordKeyFile="/k").broker.auth.password_key_file == Path("/k")
    assert broker(**ACL).mode is LogMode.STANDALONE


def test_values_of_a_file_reach_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName=c\nbrokerName=b\nbrokerId=3\nlistenPort=11\nbrokerIP1=h1\nbrokerIP2=h2\n"
        "namesrvAddr=a:1;b:2\nstorePathRootDir=/data\nflushDiskType=SYNC_FLUSH\nmaxMessageSize=1000\n"
        "autoCreateTopicEnable=FALSE\nbrokerPermission=4\nmappedFileSizeConsumeQueue=6001\n"
        "serverChannelMaxIdleTimeSeconds=60\nhealthPort=off\n"
    )
    config = load_broker_config(path)
    assert (
        config.broker.cluster_name,
        config.broker.broker_name,
        config.broker.broker_id,
        config.broker.listener.port,
    ) == ("c", "b", 3, 11)
    assert (config.broker.advertised_host, config.broker.inside_host) == ("h1", "h2")
    assert config.broker.namesrv_addrs == ("a:1", "b:2")
    assert config.broker.store.root == Path("/data")
    assert config.commit_log_path == Path("/data/commitlog")
    assert (config.mode, config.log.flush_mode) == (LogMode.STANDALONE, FlushMode.SYNC)
    assert (config.broker.max_message_size_bytes, config.broker.auto_create_topic, config.broker.broker_permission) == (
        1000,
        False,
        4,
    )
    assert config.broker.store.queue_file_size_bytes == 6020
    assert config.broker.limits.idle_s == 60
    assert config.broker.listener.health_port is None


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=file\nlistenPort=11\n")
    config = load_broker_config(path, ["brokerName=word"])
    assert (config.broker.broker_name, config.broker.listener.port) == ("word", 11)


def test_raft_mode_flushes_before_it_counts_unless_told_otherwise() -> None:
    assert broker().log.flush_mode is FlushMode.ASYNC
    raft = broker(**RAFT)
    assert (raft.mode, raft.log.flush_mode) == (LogMode.RAFT, FlushMode.SYNC)
    assert raft.raft.peers[1] == PeerAddress("n1", "10.0.0.2", 40911)
    assert broker(**RAFT, flushDiskType="ASYNC_FLUSH").log.flush_mode is FlushMode.ASYNC


LOCAL = RAFT | {"dLegerPeers": "n0-127.0.0.1:1;n1-localhost:2;n2-[::1]:3", "dLegerPeerSecretFile": ""}


@pytest.mark.parametrize(
    "peers",
    [
        "n0-10.0.0.1:1;n1-10.0.0.2:1",
        "n0-127.0.0.1:1;n1-10.0.0.2:1",
        "n0-host-a:1;n1-host-b:1",
        "n1-0.0.0.0:1",
        "n0-localhost.example:1;n1-127.0.0.1:1",
    ],
)
def test_members_that_others_can_reach_need_a_secret_or_the_word_that_they_do_without(peers: str) -> None:
    settings = RAFT | {"dLegerPeers": peers, "dLegerPeerSecretFile": ""}
    assert problems(**settings) == (
        "--set dLegerPeerSecretFile: key 'dLegerPeerSecretFile' is needed: not all of dLegerPeers are loopback"
        " addresses (insecurePeers=true does without)",
    )
    warned = broker(**settings, insecurePeers="true").notices
    assert any(text.startswith("WARNING: insecurePeers=true") for text in warned)


def test_members_on_one_machine_need_no_secret_and_hear_nobody_else() -> None:
    for settings in (RAFT, LOCAL):
        assert not any("insecurePeers" in text for text in broker(**settings).notices)
    local = load_broker_config(None, words(LOCAL))
    assert local.broker.listener.host == "0.0.0.0"
    made = raft_config(local, bytes(8), "h:1")
    assert (made.listen_host, made.listen_address.host, made.peer_secrets) == (None, "localhost", ())


def test_the_peers_secret_is_read_at_the_start_and_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "peer-secret"
    config = load_broker_config(None, words(RAFT | {"dLegerPeerSecretFile": str(path)}))
    with pytest.raises(SecretFileError, match="peer-secret cannot be read"):
        raft_config(config, bytes(8), "h:1")
    path.write_text("of-the-group" * 4)
    made = raft_config(config, bytes(8), "h:1")
    assert (made.peer_secrets, made.listen_host) == ((b"of-the-group" * 4,), "0.0.0.0")
    assert config.broker.properties["dLegerPeerSecretFile"] == str(path)
    assert "of-the-group" not in f"{made} {config} {config.broker.properties}"


def test_a_follower_registers_the_number_of_its_id_plus_one_or_its_place() -> None:
    assert broker(**RAFT).broker.follower_id == 2
    named = RAFT | {"dLegerPeers": "east-a:1;west-b:1", "dLegerSelfId": "west"}
    assert broker(**named).broker.follower_id == 2


def test_health_is_served_beside_the_listener_unless_said() -> None:
    assert (broker().broker.listener.health_port, broker().broker.listener.health_host) == (10916, "127.0.0.1")
    assert broker(listenPort="2000").broker.listener.health_port == 2005
    assert broker(listenPort="0").broker.listener.health_port == 0
    assert broker(healthPort="8088", healthHost="0.0.0.0").broker.listener.health_port == 8088


def test_inside_address_of_a_raft_member_is_its_own_entry() -> None:
    config = broker(**RAFT)
    assert config.broker.inside_host == "10.0.0.2"
    assert "inside address 10.0.0.2: this node's entry in dLegerPeers" in config.notices


def test_addresses_are_always_said_with_where_they_come_from() -> None:
    config = broker(brokerIP1="192.168.0.7")
    assert config.notices[0] == "advertised address 192.168.0.7: brokerIP1 at --set brokerIP1"
    assert config.notices[1] == "inside address 127.0.0.1: the process listens there only (bindAddress)"


def test_our_own_names_of_the_addresses_work_but_not_both() -> None:
    assert broker(advertisedHost="h").broker.advertised_host == "h"
    assert problems(advertisedHost="h", brokerIP1="h") == (
        "--set advertisedHost: key 'advertisedHost' is another name of 'brokerIP1', which stands at --set brokerIP1",
    )


def test_a_broker_is_a_master_only_if_it_listens_to_slaves() -> None:
    assert broker().mode is LogMode.STANDALONE
    assert (broker(**SYNC).mode, broker(**SYNC).ha_port) == (LogMode.MASTER, 10912)
    listening = broker(haListenPort="7", bindAddress="127.0.0.1")
    assert (listening.mode, listening.ha_port) == (LogMode.MASTER, 7)
    assert (broker(**SLAVE).mode, broker(**SLAVE).ha_port) == (LogMode.SLAVE, None)
    assert broker(**RAFT, brokerRole="SYNC_MASTER", insecurePeers="true").mode is LogMode.RAFT


@pytest.mark.parametrize(
    ("role", "settings", "wanted", "limit_s"),
    [
        ("SYNC_MASTER", {}, 2, 3.0),
        ("SYNC_MASTER", {"inSyncReplicas": "1"}, 1, None),
        ("ASYNC_MASTER", {"haListenPort": "7", "inSyncReplicas": "3"}, 1, None),
        ("ASYNC_MASTER", {"haListenPort": "7", "flushDiskType": "SYNC_FLUSH"}, 1, 5.0),
    ],
)
def test_what_a_master_waits_for(role: str, settings: dict[str, str], wanted: int, limit_s: float | None) -> None:
    """Other than in RocketMQ, a SYNC_MASTER waits for a slave unless it is told not to."""
    made = master_config(broker(**SYNC | {"brokerRole": role} | settings), "h:1")
    assert (made.rules.wanted, made.limit_s) == (wanted, limit_s)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"brokerIp1": "h"}, "--set brokerIp1: key 'brokerIp1' is unknown; nearest known key is 'brokerIP1'"),
        ({"kvConfigPath": "x"}, "key 'kvConfigPath' is unknown; it belongs to namesrv.conf"),
        ({"listenPort": "x"}, "key 'listenPort' is 'x', not a whole number"),
        ({"listenPort": "65536"}, "key 'listenPort' is 65536, not a port from 0 to 65535"),
        ({"brokerId": "-1"}, "key 'brokerId' is -1, must be 0 or more"),
        ({"maxMessageSize": "4294967296"}, "key 'maxMessageSize' is 4294967296, out of range"),
        ({"maxMessageSize": "0"}, "key 'maxMessageSize' is 0, must be above 0"),
        ({"autoCreateTopicEnable": "yes"}, "key 'autoCreateTopicEnable' is 'yes', not true or false"),
        ({"flushDiskType": "SYNC"}, "key 'flushDiskType' is 'SYNC', not one of ASYNC_FLUSH, SYNC_FLUSH"),
        ({"brokerPermission": "3"}, "key 'brokerPermission' is 3, not 2 (write), 4 (read), 6 (both) or 0"),
        ({"namesrvAddr": "a:1;b"}, "key 'namesrvAddr' has 'b', not host:port"),
        ({"namesrvAddr": "a:1;a:1"}, "key 'namesrvAddr' has 'a:1' twice"),
        ({"healthPort": "on"}, "key 'healthPort' is 'on', not a port or off"),
        ({"brokerRole": "MASTER"}, "key 'brokerRole' is 'MASTER', not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        (SLAVE | {"brokerId": "0"}, "key 'brokerId' is 0, the master's: a SLAVE needs 1 or more"),
        (SYNC | {"brokerId": "1"}, "key 'brokerId' is 1: a master has 0"),
        (SLAVE | {"haMasterAddress": "localhost:x"}, "key 'haMasterAddress' 'localhost:x' is not host:port"),
        (SLAVE | {"haMasterAddress": "10.0.0.1:10912"}, "key 'haPeerSecretFile' is needed: the master is on another"),
        (SYNC | ACL | {"bindAddress": "0.0.0.0", "insecurePeers": "true"}, "is needed: users are checked"),
        (SYNC | ACL | {"haPlainSlaves": "10.0.0.0/8"}, "key 'haPlainSlaves' has whole networks, and users are checked"),
        (SYNC | {"haPlainSlaves": "10.0.0.x"}, "key 'haPlainSlaves' does not parse"),
        (SYNC | {"minInSyncReplicas": "3"}, "key 'minInSyncReplicas' 3 is more than inSyncReplicas 2"),
        (SYNC | {"haListenPort": "10911"}, "key 'haListenPort' port 10911 is also taken by listenPort"),
        ({"sendMessageThreadPoolNums": "many"}, "key 'sendMessageThreadPoolNums' is 'many', not a whole number"),
        ({"logicalDiskSpaceCleanForciblyThreshold": "nan"}, "is 'nan', not a finite number"),
        ({"diskSpaceWarningLevelRatio": "0.95"}, "key 'diskSpaceWarningLevelRatio' is '0.95', not a whole number"),
        (RAFT | {"dLegerSelfId": "n7"}, "key 'dLegerSelfId' 'n7' is not among the peers ['n0', 'n1', 'n2']"),
        (RAFT | {"dLegerPeers": "n0-a:1;n0-b:1"}, "names node 'n0' twice: n0-a:1 and n0-b:1"),
        (RAFT | {"dLegerPeers": "n0-a:1;n1-a:1"}, "gives two nodes the same address: n0-a:1 and n1-a:1"),
        (RAFT | {"dLegerPeers": "10.0.0.1:1"}, "key 'dLegerPeers' cannot be parsed"),
        (RAFT | {"dLegerGroup": ""}, "key 'dLegerGroup' is needed in Raft mode"),
        (RAFT | {"preferredLeaderId": "n9"}, "key 'preferredLeaderId' 'n9' is not among the peers"),
        (RAFT | {"listenPort": "40911"}, "key 'dLegerPeers' port 40911 is also taken by listenPort"),
        ({"listenPort": "5", "healthPort": "5"}, "key 'healthPort' port 5 is also taken by listenPort"),
        ({"brokerNotActiveTimeoutMillis": "9999"}, "is too short: two heartbeats of 5000 ms must fit"),
        (RAFT | {"raftElectionTimeout": "299"}, "is too short: three heartbeats of 100 ms must fit"),
        ({"mappedFileSizeCommitLog": "4194304"}, "a file of 4194304 bytes must hold two such messages"),
        ({"maxMessageSize": "16777216"}, "a frame of 16777216 bytes must hold it with headers"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_value(settings: dict[str, str], problem: str) -> None:
    (found,) = problems(**settings)
    assert problem in found
    assert found.startswith("--set ") or found.split("'")[1] not in settings


@pytest.mark.parametrize("value", ["", "garbage", "-1", "9" * 30, "nan", "a:b;c:d", "[::1]:99999", "a\nb"])
@pytest.mark.parametrize(
    ("load", "keys"), [(load_broker_config, BROKER_KEYS), (load_nameserver_config, NAMESRV_KEYS)], ids=["b", "n"]
)
def test_whatever_a_key_is_set_to_is_taken_or_refused_in_a_line_for_each_problem(
    load: Callable[..., object], keys: Mapping[str, Key], value: str
) -> None:
    for key in keys:
        try:
            load(None, [f"{key}={value}"])
        except ConfigError as error:
            assert error.problems and not any("\n" in problem for problem in error.problems)
            lines = str(error).splitlines()
            assert tuple(lines[: len(error.problems)]) == error.problems


def test_a_problem_of_a_file_begins_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerName=b\nbrokerIp1=1.2.3.4\nlistenPort=many\n")
    with pytest.raises(ConfigError) as caught:
        load_broker_config(path)
    assert caught.value.problems == (
        "broker.conf:3: key 'brokerIp1' is unknown; nearest known key is 'brokerIP1'",
        "broker.conf:4: key 'listenPort' is 'many', not a whole number",
    )
    assert caught.value.exit_code == 2


def test_known_keys_without_effect_are_accepted_and_said_once_by_reason() -> None:
    notices = broker(
        sendMessageThreadPoolNums="16",
        pullMessageThreadPoolNums="16",
        coldDataScanEnable="true",
        waitTimeMillsInSendQueue="3",
    ).notices[2:]
    assert notices == (
        "sendMessageThreadPoolNums, pullMessageThreadPoolNums: no effect here, "
        "they tune Java's threads, queues and buffers",
        "waitTimeMillsInSendQueue: no effect here, done differently",
        "coldDataScanEnable: no effect here, their features are not in this version",
    )


def test_the_old_access_control_alone_is_refused_with_what_to_do() -> None:
    [problem] = problems(aclEnable="true")
    assert "key 'aclEnable' alone protects nothing: set authenticationEnabled, authorizationEnabled" in problem
    assert "`ledgermq acl import`" in problem
    assert not broker(aclEnable="false").broker.auth.authentication_enable
    both = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
    assert broker(aclEnable="true", **both).broker.auth.old_acl


def test_permissions_for_nobody_in_particular_are_refused() -> None:
    [problem] = problems(authorizationEnabled="true")
    assert "key 'authorizationEnabled' needs authenticationEnabled" in problem


def test_users_of_the_configuration_are_read_and_never_shown() -> None:
    user = '{"username":"root","password":"sesame"}'
    config = broker(authenticationEnabled="true", initAuthenticationUser=user, authenticationWhitelist="10, 310")
    assert [made.name for made in config.broker.auth.super_users()] == ["root"]
    assert config.broker.auth.authentication_whitelist == {10, 310}
    assert config.broker.properties["initAuthenticationUser"] == "***"
    assert "sesame" not in repr(config)
    [problem] = problems(initAuthenticationUser='{"user":"sesame"}')
    assert "sesame" not in problem
    assert "key 'initAuthenticationUser' is not" in problem


def test_an_empty_value_means_that_nothing_was_said() -> None:
    config = broker(dLegerGroup="", preferredLeaderId="", brokerIP1="")
    assert (config.raft.preferred_leader, config.broker.advertised_host) == (None, "127.0.0.1")


def test_properties_show_every_known_key_with_the_value_in_force() -> None:
    config = broker(**RAFT, fileReservedTime="48", serverChannelMaxIdleTimeSeconds="60")
    shown = config.broker.properties
    assert set(shown) == set(BROKER_KEYS)
    assert shown["flushDiskType"] == "SYNC_FLUSH"
    assert shown["fileReservedTime"] == "48"
    assert shown["serverChannelMaxIdleTimeSeconds"] == "60"
    assert shown["dLegerPeers"] == RAFT["dLegerPeers"]
    assert (shown["brokerIP1"], shown["brokerIP2"]) == ("127.0.0.1", "10.0.0.2")
    assert shown["messageDelayLevel"].startswith("1s 5s")
    assert shown["autoCreateTopicEnable"] == "true"
    assert shown["coldDataFlowControlEnable"] == "false", "a feature that is not here is off"
    assert not [value for value in shown.values() if value.startswith("<")]


def test_shown_properties_can_be_said_again() -> None:
    said = broker(**RAFT)
    spoken = {
        key: said.broker.properties[key]
        for key in (key.name for key in BROKER_KEYS.values() if key.path)
        if said.broker.properties[key]
    }
    assert load_broker_config(None, words(spoken)).broker.properties == said.broker.properties


def test_a_nameservers_file_reaches_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "listenPort=19876\nkvConfigPath=/x/kv.json\nscanNotActiveBrokerInterval=1000\nenableTopicList=false\n"
    )
    config = load_nameserver_config(path)
    assert (config.listener.port, config.kv_config_path) == (19876, Path("/x/kv.json"))
    assert (config.scan_interval_ms, config.topic_list_enable, config.listener.health_port) == (1000, False, 19881)
    assert set(config.properties) == set(NAMESRV_KEYS)
    assert config.properties["scanNotActiveBrokerInterval"] == "1000"


def test_a_nameserver_refuses_a_brokers_key() -> None:
    with pytest.raises(ConfigError, match=r"key 'brokerName' is unknown; it belongs to broker\.conf"):
        load_nameserver_config(None, ["brokerName=b"])
