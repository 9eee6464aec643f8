"""docker-compose.yml, the configuration it mounts, and the code that breaks it, tell one story."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chaos.compose import CHAOS, DRILLED
from node.config import load_broker_config, load_controller_config, load_nameserver_config
from node.node_config import LogMode

PROJECT = Path(__file__).resolve().parent.parent.parent
COMPOSE = (PROJECT / "docker-compose.yml").read_text()
COMMANDS = re.findall(r'command: \["(\w+)", "-c", "/etc/ledgermq/([\w.]+)", (.*)\]', COMPOSE)


def overrides_of(words: str) -> list[str]:
    return [word.strip().strip('"') for word in words.split(",") if "--set" not in word]


def test_the_compose_file_starts_two_nameservers_and_three_brokers_and_has_two_pairs_beside_them() -> None:
    kinds = [kind for kind, _, _ in COMMANDS]
    assert kinds == ["nameserver"] * 2 + ["broker"] * 7 + ["controller"] * 3 + ["broker"] * 12
    assert [conf for _, conf, _ in COMMANDS].count("replicas.conf") == 4
    assert COMPOSE.count("profiles: [") == 4 + 6 + 6 + 4


def test_profile_controller_has_three_controllers_and_three_brokers_that_know_them() -> None:
    conf = PROJECT / "conf" / "compose"
    found = [
        load_controller_config(conf / "controller.conf", overrides_of(words))
        for kind, _, words in COMMANDS
        if kind == "controller"
    ]
    assert [one.self_id for one in found] == list(found[0].peers) == ["c0", "c1", "c2"]
    brokers = [
        load_broker_config(conf / name, overrides_of(words)) for _, name, words in COMMANDS if name == "elected.conf"
    ]
    assert len(brokers) == 3 and {one.mode for one in brokers} == {LogMode.ELECTED}
    assert {one.elected.controllers for one in brokers} == {tuple(found[0].peers.values())}
    assert {one.listener.health_port for one in found} == {8088}


def test_each_profile_is_a_master_and_its_slave() -> None:
    conf = PROJECT / "conf" / "compose" / "replicas.conf"
    pairs = [load_broker_config(conf, overrides_of(words)) for _, name, words in COMMANDS if name == conf.name]
    for role, (master, slave) in (("SYNC_MASTER", pairs[:2]), ("ASYNC_MASTER", pairs[2:])):
        assert (master.broker_role, slave.broker_role) == (role, "SLAVE")
        assert master.broker.broker_name == slave.broker.broker_name
        assert slave.ha.master_address == f"{master.broker.inside_host}:{master.ha_port}"


def test_every_node_of_the_compose_file_has_a_sound_configuration_and_the_port_that_is_published() -> None:
    for kind, conf, words in COMMANDS:
        if kind == "controller":
            continue
        path = PROJECT / "conf" / "compose" / conf
        is_broker = kind == "broker"
        given = overrides_of(words)
        config = load_broker_config(path, given).broker if is_broker else load_nameserver_config(path, given)
        assert f'ports: ["127.0.0.1:{config.listener.port}:{config.listener.port}"]' in COMPOSE
        assert config.listener.health_port == 8088


def test_three_brokers_each_are_the_members_of_one_raft_group() -> None:
    conf = PROJECT / "conf" / "compose" / "broker.conf"
    configs = [load_broker_config(conf, overrides_of(words)) for _, name, words in COMMANDS if name == conf.name]
    groups = [configs[first : first + 3] for first in (0, 3, 6, 9)]
    assert [group[0].raft.group for group in groups] == ["broker-a", "broker-b", "broker-c", "broker-chaos"]
    for group, preferred in zip(groups, ("n0", "n1", "n2", None), strict=True):
        assert [config.raft.preferred_leader for config in group] == [preferred] * 3
        assert [config.broker.default_topic_queue_count for config in group] == [3] * 3
        assert {config.broker.broker_name for config in group} == {group[0].raft.group}
        assert [config.raft.self_id for config in group] == ["n0", "n1", "n2"]
    for group in groups[:3]:
        assert [config.broker.inside_host for config in group] == [peer.host for peer in group[0].raft.peers]


def test_the_brokers_of_profile_chaos_dial_each_other_through_the_proxies_that_drills_know() -> None:
    conf = PROJECT / "conf" / "compose"
    configs = [load_broker_config(conf / "broker.conf", overrides_of(words)) for _, _, words in COMMANDS[-3:]]
    proxies = {one["name"]: one for one in json.loads((conf / "toxiproxy.json").read_text())}
    links = {link.name: link for link in CHAOS.links}
    assert set(links) == set(proxies) and len(links) == 6
    dialled = set()
    for config in configs:
        for peer, other in zip(config.raft.peers, configs, strict=True):
            own, its = config.broker.inside_host, other.broker.inside_host
            if own == its:
                assert peer.host == own
                continue
            link, proxy = links[f"{own}-{its}"], proxies[f"{own}-{its}"]
            assert (peer.host, proxy["upstream"], link.upstream) == ("toxiproxy", f"{its}:40911", f"{its}:40911")
            assert link.listen.rpartition(":")[2] == proxy["listen"].rpartition(":")[2] == str(peer.port)
            assert f'"{link.listen}:{peer.port}"' in COMPOSE
            dialled.add(peer.port)
    assert len(dialled) == 6
    assert [f"127.0.0.1:{config.broker.listener.port}" for config in configs] == list(CHAOS.brokers)


def test_the_brokers_of_each_mode_are_those_that_drills_know() -> None:
    conf = PROJECT / "conf" / "compose"
    found: dict[str, dict[str, str]] = {}
    for _, name, words in COMMANDS:
        if name in ("replicas.conf", "elected.conf"):
            broker = load_broker_config(conf / name, overrides_of(words)).broker
            mode = "controller" if name == "elected.conf" else broker.inside_host.partition("-")[0]
            found.setdefault(mode, {})[f"127.0.0.1:{broker.listener.port}"] = broker.inside_host
    assert found == {mode: dict(shape.brokers) for mode, shape in DRILLED.items() if mode != "raft"}
    for shape in DRILLED.values():
        for service in shape.services:
            assert f"\n  {service}:\n" in COMPOSE
            assert f'profiles: ["{shape.profile}"]' in COMPOSE.partition(f"\n  {service}:\n")[2].partition("\n\n")[0]


@pytest.mark.docker
def test_compose_accepts_the_file() -> None:
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            done = subprocess.run([*words, "-f", str(PROJECT / "docker-compose.yml"), "config"], capture_output=True)
            assert done.returncode == 0, done.stderr
            return
    pytest.skip("neither `docker compose` nor docker-compose is installed")
