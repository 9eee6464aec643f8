"""The broker's settings under RocketMQ's names, as the properties text of GET_BROKER_CONFIG (26).

Every known key is shown with the value in force, as the configuration knows it; the role stands above that.
"""

from broker.config import BrokerConfig
from broker.role import Role
from ledgermq.remoting.config_key import keys_of


def properties_text(config: BrokerConfig, role: Role) -> bytes:
    """`key=value` lines, sorted."""
    values = {name: key.shown_in(config) for name, key in keys_of(BrokerConfig).items() if key.path}
    values |= {**config.properties, "brokerId": str(role.broker_id), "brokerRole": role.upstream_name}
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items())).encode()
