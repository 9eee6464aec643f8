"""Administration of brokers and nameservers: their settings and figures, and the nameservers' key-value table."""

from collections.abc import Mapping

from ledgermq.client.admin.base import AdminBase
from ledgermq.client.admin.results import parse_table
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.checks import check_kind, check_text, check_text_map
from ledgermq.client.errors import InvalidArgumentError, NotFoundError, UndecodableError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.refusal import Refusal


class ServerAdmin(AdminBase):
    """Administration of brokers and nameservers.

    `broker` is a broker name (its leader is asked) or the address of one node. Nameservers share nothing: changes are
    sent to each of them, reads go to one.
    """

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return all settings of a broker."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_CONFIG, {})
        return _parse_settings(broker, answer.body)

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs.

        Raises:
            PermissionDeniedError, InvalidRequestError: a setting cannot be changed, or has an invalid value.
        """
        await self._at_leader(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, body=_settings_text(settings))

    async def broker_info(self, broker: str) -> dict[str, str]:
        """Return the runtime statistics of a broker (rates, times, sizes), under RocketMQ's names."""
        answer = await self._at_leader(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return read_body(broker, "figures", answer.body, parse_table)

    async def wipe_write_permission(self, broker: str) -> int:
        """Remove the write permission of a broker from the routes of every nameserver, for maintenance.

        Returns:
            Number of topics changed, at the nameserver that changed most.
        """
        return await self._change_write_permission(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount")

    async def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`.

        Returns:
            Number of topics changed, at the nameserver that changed most.
        """
        return await self._change_write_permission(broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount")

    async def nameserver_config(self, address: str | None = None) -> dict[str, str]:
        """Return all settings of the nameserver at `address`; of the one that answers first if it is None."""
        if address is None:
            answer = await self._at_a_nameserver(RequestCode.GET_NAMESRV_CONFIG, {})
        else:
            check_text(address, "address")
            answer = await self._ask(address, RequestCode.GET_NAMESRV_CONFIG, {}, self._attempt_timeout_s)
        return _parse_settings(address or "nameserver", answer.body)

    async def update_nameserver_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of every nameserver while it runs."""
        await self._at_nameservers(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body=_settings_text(settings))

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every nameserver."""
        check_kind(str, namespace=namespace, key=key, value=value)
        if not (namespace and key and value):
            raise InvalidArgumentError(f"namespace {namespace!r}, key {key!r}, value {value!r}: none may be empty")
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._at_nameservers(RequestCode.PUT_KV_CONFIG, ext)

    async def value(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None when there is none."""
        check_kind(str, namespace=namespace, key=key)
        ext = {"namespace": namespace, "key": key}
        try:
            answer = await self._at_a_nameserver(RequestCode.GET_KV_CONFIG, ext)
        except NotFoundError:
            return None
        return answer.ext.get("value")

    async def values(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace, by key."""
        check_text(namespace, "namespace")
        try:
            answer = await self._at_a_nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        except NotFoundError:
            return {}
        return read_body("nameserver", "values", answer.body, parse_table)

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at every nameserver."""
        check_kind(str, namespace=namespace, key=key)
        await self._at_nameservers(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    # -- internals

    async def _change_write_permission(self, broker: str, code: int, count_field: str) -> int:
        check_text(broker, "broker")
        answers = await self._at_nameservers(code, {"brokerName": broker})
        return max(int(answer.ext.get(count_field, "0")) for answer in answers.values())


def _parse_settings(where: str, body: bytes | memoryview) -> dict[str, str]:
    """Parse the settings in an answer, a properties text.

    Raises:
        UndecodableError: not a properties text.
    """
    try:
        return parse_properties(bytes(body).decode())
    except (UnicodeDecodeError, Refusal) as error:
        raise UndecodableError(f"{where}: settings: {error}") from error


def _settings_text(settings: Mapping[str, str]) -> bytes:
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
