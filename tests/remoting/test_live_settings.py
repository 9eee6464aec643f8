import pytest

from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.serving.live_settings import LiveSettings
from nameserver.config import NameServerConfig

PROPERTIES = {
    "listenPort": "9876",
    "serverWorkerThreads": "8",
    "kvConfigPath": "/x",
    "scanNotActiveBrokerInterval": "5000",
}


@pytest.fixture
def settings() -> LiveSettings[NameServerConfig]:
    return LiveSettings(NameServerConfig(properties=PROPERTIES), lambda config: None)


def test_all_known_keys_are_shown_sorted(settings: LiveSettings[NameServerConfig]) -> None:
    lines = settings.as_text().splitlines()
    assert lines == sorted(lines)
    assert {"listenPort=9876", "serverWorkerThreads=8", "enableTopicList=true"} <= set(lines)


def test_a_change_takes_effect_and_is_shown() -> None:
    seen: list[NameServerConfig] = []
    settings = LiveSettings(NameServerConfig(properties=PROPERTIES), seen.append)
    settings.update("# by hand\n\nscanNotActiveBrokerInterval = 900\norderMessageEnable=true\n")
    assert (settings.config.scan_interval_ms, settings.config.order_message_enable) == (900, True)
    assert seen == [settings.config]
    assert "scanNotActiveBrokerInterval=900\n" in settings.as_text()


def test_a_key_without_effect_keeps_what_it_is_told(settings: LiveSettings[NameServerConfig]) -> None:
    settings.update("serverWorkerThreads=16")
    assert "serverWorkerThreads=16\n" in settings.as_text()


def test_a_fixed_key_may_be_said_with_its_own_value(settings: LiveSettings[NameServerConfig]) -> None:
    settings.update("listenPort=9876")
    with pytest.raises(Refusal, match="key 'listenPort' cannot change from '9876' while running"):
        settings.update("listenPort=9877")


def test_a_change_is_made_wholly_or_not_at_all(settings: LiveSettings[NameServerConfig]) -> None:
    before = settings.as_text()
    with pytest.raises(Refusal, match=r"black list\. It holds kvConfigPath"):
        settings.update("orderMessageEnable=true\nkvConfigPath=/y\n")
    with pytest.raises(Refusal, match="'orderMessageEnable' is 'maybe', not true or false"):
        settings.update("scanNotActiveBrokerInterval=1\norderMessageEnable=maybe\n")
    assert settings.as_text() == before
    assert settings.config.scan_interval_ms == 5000


def test_the_configurations_own_black_list_is_kept_to() -> None:
    settings = LiveSettings(NameServerConfig(config_black_list=("serverWorkerThreads",), properties=PROPERTIES), print)
    with pytest.raises(Refusal, match=r"black list\. It holds serverWorkerThreads"):
        settings.update("serverWorkerThreads=9")
    with pytest.raises(Refusal, match=r"black list\. It holds kvConfigPath"):
        settings.update("kvConfigPath=/y")


def test_of_an_unknown_key_only_the_start_is_compared_and_shown(settings: LiveSettings[NameServerConfig]) -> None:
    with pytest.raises(Refusal, match=r"is unknown; no known key is like it$") as caught:
        settings.update("serverWorkerThread" * 1_000_000 + "=1")
    assert len(caught.value.remark) < 200


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("scanNotActiveBrokerInterval", "9" * 5000, "is '9999"),
        ("scanNotActiveBrokerInterval", "0" * 19 + "1" + "9" * 100, "is '0000"),
        ("scanNotActiveBrokerInterval", "9223372036854775808", "out of range"),
        ("scanNotActiveBrokerInterval", "0", "is 0, must be above 0"),
        ("waitSecondsForService", "2147483648", "out of range"),
        ("waitSecondsForService", "-1", "is -1, must be above 0"),
    ],
)
def test_a_number_out_of_the_keys_range_is_refused_however_it_is_written(
    settings: LiveSettings[NameServerConfig], key: str, value: str, complaint: str
) -> None:
    before = settings.config
    with pytest.raises(Refusal, match=complaint) as caught:
        settings.update(f"{key}={value}")
    assert len(caught.value.remark) < 200
    assert settings.config == before


def test_escapes_survive_the_round_trip(settings: LiveSettings[NameServerConfig]) -> None:
    settings.update("serverWorkerThreads=a\\\\b\\=c")
    assert "serverWorkerThreads=a\\\\b=c\n" in settings.as_text()
