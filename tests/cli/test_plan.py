"""The plan of a local cluster: shapes, ports and properties, before anything runs."""

import re
from pathlib import Path

import pytest

from cli.cluster.folder import ClusterFolder
from cli.cluster.plan import ClusterMode, block_size, in_namespaces, parse_settings, plan_cluster, used_offsets
from ledgermq.remoting.proof import read_secrets
from node.errors import UsageError


def test_a_raft_cluster_is_one_group_whose_members_name_each_other() -> None:
    plan = plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {})
    assert plan.broker_names == ["broker-a"]
    assert [broker.conf["dLegerSelfId"] for broker in plan.brokers] == ["n0", "n1", "n2"]
    peers = {broker.conf["dLegerPeers"] for broker in plan.brokers}
    assert peers == {"n0-127.0.0.1:21030;n1-127.0.0.1:21050;n2-127.0.0.1:21070"}
    assert {broker.conf["namesrvAddr"] for broker in plan.brokers} == {plan.namesrv}


def test_several_groups_share_the_machines_and_each_machine_leads_one() -> None:
    plan = plan_cluster(ClusterMode.RAFT, 9, 21000, Path("/d"), {}, has_links=True, groups=3)
    assert plan.broker_names == ["broker-a", "broker-b", "broker-c"]
    machines = {name: [node.name for node in nodes] for name, nodes in plan.machines.items()}
    assert machines == {"m0": ["n0", "n3", "n6"], "m1": ["n1", "n4", "n7"], "m2": ["n2", "n5", "n8"]}
    second = plan.brokers[3:6]
    assert {broker.conf["dLegerGroup"] for broker in second} == {"broker-b"}
    assert [peer[:2] for peer in second[0].conf["dLegerPeers"].split(";")] == ["n3", "n4", "n5"]
    assert [plan.brokers[first].conf["preferredLeaderId"] for first in (0, 3, 6)] == ["n0", "n4", "n8"]
    assert {broker.conf["defaultTopicQueueNums"] for broker in plan.brokers} == {"3"}
    assert {(link.source, link.target) for link in plan.links} >= {("n3", "n5")}
    assert all(int(link.source[1]) // 3 == int(link.target[1]) // 3 for link in plan.links)
    assert plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {}).machines == {}


@pytest.mark.parametrize(
    ("mode", "count", "groups", "text"),
    [
        (ClusterMode.STANDALONE, 3, 3, "--groups is not for mode standalone"),
        (ClusterMode.RAFT, 0, 0, "--groups 0 is not 1 or more"),
        (ClusterMode.RAFT, 12, 4, "--nodes 3 for each of 4 groups is not between 1 and 2"),
    ],
)
def test_groups_that_cannot_be_are_refused(mode: ClusterMode, count: int, groups: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan_cluster(mode, count, 21000, Path("/d"), {}, groups=groups)


def test_standalone_brokers_have_names_of_their_own_and_no_peers() -> None:
    plan = plan_cluster(ClusterMode.STANDALONE, 2, 21000, Path("/d"), {})
    assert plan.broker_names == ["broker-a", "broker-b"]
    assert not any(key.startswith(("dLeger", "enableDLeger")) for broker in plan.brokers for key in broker.conf)


def test_a_master_and_its_slaves_share_a_name_and_a_secret() -> None:
    plan = plan_cluster(ClusterMode.SYNC, 3, 21000, Path("/d"), {})
    parts = [(broker.conf["brokerRole"], broker.conf["brokerId"]) for broker in plan.brokers]
    assert parts == [("SYNC_MASTER", "0"), ("SLAVE", "1"), ("SLAVE", "2")]
    assert plan.broker_names == ["broker-a"]
    assert {broker.conf["haPeerSecretFile"] for broker in plan.brokers} == {"/d/peer-secret"}
    assert plan.brokers[1].conf["haMasterAddress"] == f"127.0.0.1:{plan.brokers[0].conf['haListenPort']}"
    first = plan_cluster(ClusterMode.ASYNC, 2, 21000, Path("/d"), {}).brokers[0]
    assert first.conf["brokerRole"] == "ASYNC_MASTER" and "enableDLegerCommitLog" not in first.conf


@pytest.mark.parametrize("mode", list(ClusterMode))
def test_the_ports_that_are_checked_are_those_that_the_nodes_listen_at(mode: ClusterMode) -> None:
    plan = plan_cluster(mode, 3, 21000, Path("/d"), {})
    listened = {port for node in plan.nodes for port in (node.port, node.health_port)}
    if mode is ClusterMode.RAFT:
        listened |= {int(peer.rsplit(":", 1)[1]) for peer in plan.brokers[0].conf["dLegerPeers"].split(";")}
    if mode.has_master:
        listened.add(int(plan.brokers[0].conf["haListenPort"]))
    if mode is ClusterMode.CONTROLLER:
        listened |= {int(broker.conf["haListenPort"]) for broker in plan.brokers}
        listened |= {node.port + int(node.conf["controllerQuorumPortOffset"]) for node in plan.controllers}
    assert {21000 + offset for offset in used_offsets(mode, 3)} == listened
    assert max(listened) < 21000 + block_size(3)
    with_three = plan_cluster(mode, 3, 21000, Path("/d"), {}, nameservers=3)
    routes = {port for node in with_three.nameservers for port in (node.port, node.health_port)}
    assert len(routes) == 6 and len({node.directory for node in with_three.nameservers}) == 3
    assert {21000 + offset for offset in used_offsets(mode, 3, nameservers=3)} == listened | routes
    assert {broker.conf["namesrvAddr"] for broker in with_three.brokers} == {with_three.namesrv}
    with pytest.raises(UsageError, match="--nameservers 4 is not between 1 and 3"):
        plan_cluster(mode, 3, 21000, Path("/d"), {}, nameservers=4)


def test_settings_of_the_user_reach_every_broker_and_win() -> None:
    plan = plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {"flushDiskType": "ASYNC_FLUSH"})
    assert all("flushDiskType=ASYNC_FLUSH\n" in broker.conf_text() for broker in plan.brokers)


def test_the_last_of_two_settings_of_one_key_wins() -> None:
    assert parse_settings(["a=1", "b= x=y ", "a=2"]) == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("word", ["flushDiskType", "=ASYNC_FLUSH", " =1"])
def test_a_setting_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_settings([word])


@pytest.mark.parametrize("word", ["listenPort=9", "dLegerPeers=n0-a:1", "storePathRootDir=/x"])
def test_what_tells_the_nodes_apart_cannot_be_set_for_all(word: str) -> None:
    with pytest.raises(UsageError, match="set by the cluster itself"):
        parse_settings([word])


@pytest.mark.parametrize("count", [0, -1, 10])
def test_a_number_of_nodes_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"--nodes {count} is not between"):
        plan_cluster(ClusterMode.RAFT, count, 21000, Path("/d"), {})


@pytest.mark.parametrize("port", [0, -5, 65530, 70000])
def test_a_base_port_without_room_for_the_block_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match=f"--base-port {port} is out of range"):
        plan_cluster(ClusterMode.RAFT, 3, port, Path("/d"), {})


def test_a_raft_cluster_gets_a_secret_once_which_its_owner_alone_can_read(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "d")
    folder._lock.close()
    plan = plan_cluster(ClusterMode.RAFT, 3, 21000, tmp_path / "d", {})
    folder.write_configuration(plan)
    (path,) = {Path(broker.conf["dLegerPeerSecretFile"]) for broker in plan.brokers}
    assert path.stat().st_mode & 0o777 == 0o600
    first = read_secrets(path)
    folder.write_configuration(plan)
    assert read_secrets(path) == first
    folder.empty()
    folder.write_configuration(plan)
    assert read_secrets(path) != first
    assert first[0].decode() not in "".join(broker.conf_text() for broker in plan.brokers)


def test_three_controllers_elect_the_master_of_brokers_that_share_a_name() -> None:
    plan = plan_cluster(ClusterMode.CONTROLLER, 3, 21000, Path("/d"), {})
    assert [node.name for node in plan.nodes] == ["namesrv", "c0", "c1", "c2", "n0", "n1", "n2"]
    addresses = ";".join(node.address for node in plan.controllers)
    for broker in plan.brokers:
        assert broker.conf["enableControllerMode"] == "true" and broker.conf["controllerAddr"] == addresses
        assert "brokerRole" not in broker.conf
    assert plan.broker_names == ["broker-a"]
    assert plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {}).controllers == ()


@pytest.mark.parametrize("mode", [ClusterMode.RAFT, ClusterMode.SYNC])
@pytest.mark.parametrize("count", [3, 9])
def test_with_links_brokers_dial_proxies_whose_ports_nobody_else_uses(mode: ClusterMode, count: int) -> None:
    plain = plan_cluster(mode, count, 21000, Path("/d"), {})
    plan = plan_cluster(mode, count, 21000, Path("/d"), {}, has_links=True)
    listened = {21000 + offset for offset in used_offsets(mode, count)}
    added = [int(address.rsplit(":", 1)[1]) for address in (plan.links_api, *(link.listen for link in plan.links))]
    assert len(set(added)) == len(added) and not listened & set(added)
    assert {21000 + offset for offset in used_offsets(mode, count, has_links=True)} == listened | set(added)
    for link in plan.links:
        dialer = next(broker for broker in plan.brokers if broker.name == link.source)
        dialed = dialer.conf["dLegerPeers"] if mode is ClusterMode.RAFT else dialer.conf["haMasterAddress"]
        assert link.listen in dialed
    assert len(plan.links) == (count * (count - 1) if mode is ClusterMode.RAFT else count - 1)
    own = f"n0-{plain.links_api.rsplit(':', 1)[0]}:{21000 + 30}"
    assert mode is not ClusterMode.RAFT or plan.brokers[0].conf["dLegerPeers"].startswith(own)


def test_a_mode_without_links_refuses_them() -> None:
    with pytest.raises(UsageError, match="--links is not for mode controller"):
        plan_cluster(ClusterMode.CONTROLLER, 3, 21000, Path("/d"), {}, has_links=True)


@pytest.mark.parametrize(("mode", "count"), [(ClusterMode.RAFT, 3), (ClusterMode.SYNC, 2), (ClusterMode.CONTROLLER, 3)])
def test_in_namespaces_each_node_has_an_address_and_all_others_know_it(mode: ClusterMode, count: int) -> None:
    plan = plan_cluster(mode, count, 21000, Path("/d"), {}, nameservers=2)
    moved = in_namespaces(plan)
    assert len({node.host for node in moved.nodes}) == len(moved.nodes)
    assert [node.port for node in moved.nodes] == [node.port for node in plan.nodes]
    hosts = {node.port: node.host for node in moved.nodes}
    for node in moved.nodes:
        assert node.conf["bindAddress"] == node.host
        for value in node.conf.values():
            assert "127.0.0.1" not in value
            for host, port in re.findall(r"(10[.\d]+):(\d+)", value):
                assert host == hosts[max(at for at in hosts if at <= int(port))]
    assert moved.namesrv == ";".join(node.address for node in moved.nameservers)


def test_namespaces_refuse_links() -> None:
    plan = plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {}, has_links=True)
    with pytest.raises(UsageError, match="--links is not for --fabric namespaces"):
        in_namespaces(plan)


def test_disks_of_their_own_hold_what_brokers_store() -> None:
    plan = plan_cluster(ClusterMode.RAFT, 3, 21000, Path("/d"), {}, has_disks=True)
    for node in plan.brokers:
        assert Path(node.conf["storePathRootDir"]).parent == node.disk
        assert node.disk in node.log_directory.parents and node.disk not in node.conf_path.parents
