"""Administration of nameservers: their settings, and their key-value table."""

from collections.abc import Mapping

from ledgermq.client.admin.base import AdminBase
from ledgermq.client.admin.brokers import parse_settings, settings_text
from ledgermq.client.core.bodies import read_body
from ledgermq.client.core.checks import check_text, check_texts
from ledgermq.client.errors import InvalidArgumentError, NotFoundError
from ledgermq.remoting.codec.codes import RequestCode


class NameserverAdmin(AdminBase):
    """Nameservers share nothing: changes are sent to each of them, reads go to one."""

    async def nameserver_config(self, address: str | None = None) -> dict[str, str]:
        """All settings of the nameserver at `address`; of the one that answers first if it is None."""
        if address is None:
            answer = await self._at_a_nameserver(RequestCode.GET_NAMESRV_CONFIG, {})
        else:
            check_text(address, "address")
            answer = await self._ask(address, RequestCode.GET_NAMESRV_CONFIG, {}, self._attempt_timeout_s)
        return parse_settings(address or "nameserver", answer.body)

    async def update_nameserver_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of every nameserver while it runs."""
        await self._at_nameservers(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body=settings_text(settings))

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every nameserver."""
        check_texts(namespace=namespace, key=key, value=value)
        if not (namespace and key and value):
            raise InvalidArgumentError(f"namespace {namespace!r}, key {key!r}, value {value!r}: none may be empty")
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._at_nameservers(RequestCode.PUT_KV_CONFIG, ext)

    async def value(self, namespace: str, key: str) -> str | None:
        """A stored value; None when there is none."""
        check_texts(namespace=namespace, key=key)
        ext = {"namespace": namespace, "key": key}
        try:
            answer = await self._at_a_nameserver(RequestCode.GET_KV_CONFIG, ext)
        except NotFoundError:
            return None
        return answer.ext.get("value")

    async def values(self, namespace: str) -> dict[str, str]:
        """All values of a namespace, by key."""
        check_text(namespace, "namespace")
        try:
            answer = await self._at_a_nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        except NotFoundError:
            return {}
        return read_body(
            "nameserver", "values", answer.body, lambda data: {str(k): str(v) for k, v in data["table"].items()}
        )

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at every nameserver."""
        check_texts(namespace=namespace, key=key)
        await self._at_nameservers(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})
