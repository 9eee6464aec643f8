"""Configuration of a controller: what is needed, what is refused."""

import pytest

from ha.controller.config import ControllerConfig
from node.config import load_controller_config
from node.properties import ConfigError

PEERS = "controllerDLegerPeers=n0-127.0.0.1:9878;n1-127.0.0.1:9868"


def load(*words: str) -> ControllerConfig:
    return load_controller_config(None, words)


def test_a_controller_listens_where_the_others_look_for_it() -> None:
    config = load(PEERS, "controllerDLegerSelfId=n1", "controllerSecretFile=/x")
    assert (config.address, config.listener.port, config.listener.health_port) == ("127.0.0.1:9868", 9868, 9873)
    assert config.quorum_members == {"n0": "127.0.0.1:9978", "n1": "127.0.0.1:9968"}
    assert config.properties["controllerDLegerPeers"] == "n0-127.0.0.1:9878;n1-127.0.0.1:9868"


def test_without_a_secret_nothing_starts() -> None:
    with pytest.raises(ConfigError, match="key 'controllerSecretFile' is needed: whoever reaches"):
        load(PEERS, "controllerDLegerSelfId=n0")


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ("n0-127.0.0.1", "has 'n0-127.0.0.1', which is no id-host:port"),
        ("n0-h:1;n0-h:2", "has the id 'n0' twice"),
        ("n0-h:1;n1-h:1", "gives two controllers one address"),
        ("-h:1", "has the id '' twice, or an empty one"),
        ("n0-127.0.0.1:65530", "100 leads beyond port 65535"),
        ("n0-127.0.0.1:9878;n1-127.0.0.1:9978", "100 leads to 127.0.0.1:9978, which is a controller's own"),
        ("n1-127.0.0.1:9878", "'n0' is not among the controllers ['n1']"),
    ],
)
def test_wrong_peers_are_refused(peers: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(f"controllerDLegerPeers={peers}", "controllerDLegerSelfId=n0", "controllerSecretFile=/x")
    assert said in str(raised.value)


def test_who_may_change_something_is_said_at_the_start() -> None:
    words = (PEERS, "controllerDLegerSelfId=n0", "controllerSecretFile=/x")
    assert "only brokers and tools on this machine" in " ".join(load(*words).notices)
    assert "WARNING: insecureController=true" in " ".join(load(*words, "insecureController=true").notices)
    assert load(*words, "namesrvSecretFile=/y").notices == ()


def test_a_port_is_not_taken_twice() -> None:
    with pytest.raises(ConfigError, match="port 9978 is also taken by healthPort"):
        load(PEERS, "controllerDLegerSelfId=n0", "controllerSecretFile=/x", "healthPort=9978")


def test_a_brokers_key_belongs_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"key 'brokerName' is unknown; it belongs to broker\.conf"):
        load(PEERS, "controllerDLegerSelfId=n0", "controllerSecretFile=/x", "brokerName=b")
