"""Administration of brokers: settings, figures, whether they take messages."""

from collections.abc import Mapping

from ledgermq.client.admin.base import AdminBase, parse_table
from ledgermq.client.core.bodies import read_body
from ledgermq.client.core.checks import check_text, check_text_map
from ledgermq.client.errors import InvalidArgumentError, UndecodableError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.refusal import Refusal


class BrokerAdmin(AdminBase):
    """Administration of brokers. `broker` is a broker name (its leader is asked) or the address of one node."""

    async def broker_config(self, broker: str) -> dict[str, str]:
        """All settings of a broker."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_CONFIG, {})
        return parse_settings(broker, answer.body)

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs.

        Raises:
            PermissionDeniedError, InvalidRequestError: a setting cannot be changed, or has an invalid value.
        """
        await self._at_leader(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, body=settings_text(settings))

    async def broker_info(self, broker: str) -> dict[str, str]:
        """The runtime statistics of a broker (rates, times, sizes), under RocketMQ's names."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return read_body(broker, "figures", answer.body, parse_table)

    async def wipe_write_permission(self, broker: str) -> int:
        """Remove the write permission of a broker from the routes of every nameserver, for maintenance.

        Returns:
            Number of topics changed, at the nameserver that changed most.
        """
        check_text(broker, "broker")
        answers = await self._at_nameservers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})
        return max(int(answer.ext.get("wipeTopicCount", "0")) for answer in answers.values())

    async def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`.

        Returns:
            Number of topics changed, at the nameserver that changed most.
        """
        check_text(broker, "broker")
        answers = await self._at_nameservers(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": broker})
        return max(int(answer.ext.get("addTopicCount", "0")) for answer in answers.values())


def parse_settings(where: str, body: bytes | memoryview) -> dict[str, str]:
    """Parse the settings in an answer, a properties text.

    Raises:
        UndecodableError: not a properties text.
    """
    try:
        return parse_properties(bytes(body).decode())
    except (UnicodeDecodeError, Refusal) as error:
        raise UndecodableError(f"{where}: settings: {error}") from error


def settings_text(settings: Mapping[str, str]) -> bytes:
    """Encode settings for a request.

    Raises:
        InvalidArgumentError: no settings, an invalid name, or a line break in a value.
    """
    check_text_map(settings=settings)
    if not settings:
        raise InvalidArgumentError("no settings to change")
    for name, value in settings.items():
        if not name or any(mark in name for mark in "=\n\r# ") or "\n" in value or "\r" in value:
            raise InvalidArgumentError(f"setting {name!r} is {value!r}: an invalid name, or a line break in the value")
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
