"""Administration of brokers: settings, figures, whether they take messages."""

from collections.abc import Mapping

from ledgermq.client.admin.base import AdminBase, parse_table, read
from ledgermq.client.core.checks import check_text, check_text_map
from ledgermq.client.errors import InvalidArgumentError, UndecodableError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.refusal import Refusal


class BrokerAdmin(AdminBase):
    """Brokers; where one is asked for, a broker name means its leader, an address (`host:port`) that node."""

    async def broker_config(self, broker: str) -> dict[str, str]:
        """All settings of a broker."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_CONFIG, {})
        return parse_settings(broker, answer.body)

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs.

        Raises:
            PermissionDeniedError, InvalidRequestError: one that cannot be changed so.
        """
        await self._at_leader(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, body=settings_text(settings))

    async def broker_info(self, broker: str) -> dict[str, str]:
        """Figures of a broker: rates, times, sizes, by RocketMQ's names."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return read(broker, "figures", answer.body, parse_table)

    async def wipe_write_permission(self, broker: str) -> int:
        """Let no client send to a broker any more, for maintenance: told to every nameserver.

        Returns:
            How many topics that concerns, at the nameserver that knows most.
        """
        check_text(broker, "broker")
        answers = await self._at_nameservers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})
        return max(int(answer.ext.get("wipeTopicCount", "0")) for answer in answers.values())

    async def add_write_permission(self, broker: str) -> int:
        """Take `wipe_write_permission` back.

        Returns:
            How many topics that concerns, at the nameserver that knows most.
        """
        check_text(broker, "broker")
        answers = await self._at_nameservers(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": broker})
        return max(int(answer.ext.get("addTopicCount", "0")) for answer in answers.values())


def parse_settings(where: str, body: bytes | memoryview) -> dict[str, str]:
    """A properties text.

    Raises:
        UndecodableError: not one.
    """
    try:
        return parse_properties(bytes(body).decode())
    except (UnicodeDecodeError, Refusal) as error:
        raise UndecodableError(f"{where}: settings: {error}") from error


def settings_text(settings: Mapping[str, str]) -> bytes:
    """Settings as requests carry them.

    Raises:
        InvalidArgumentError: nothing, a name that is none, or a line break.
    """
    check_text_map(settings=settings)
    if not settings:
        raise InvalidArgumentError("no settings to change")
    for name, value in settings.items():
        if not name or any(mark in name for mark in "=\n\r# ") or "\n" in value or "\r" in value:
            raise InvalidArgumentError(f"setting {name!r} is {value!r}")
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
