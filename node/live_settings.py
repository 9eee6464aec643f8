"""A broker's key and a text, sent while it runs, to a setting."""

from broker.admin.live_config import Setting
from ledgermq.remoting.refusal import Cause, Refusal
from node import values
from node.bindings import BROKER_BINDINGS
from node.keys import BROKER_KEYS, nearest_key


def read_setting(key: str, text: str) -> Setting:
    """The setting.

    Raises:
        Refusal: INVALID_PARAMETER, the key is unknown, or the text is no value of it.
    """
    known = BROKER_KEYS.get(key)
    if known is None:
        start = key[:100]
        nearest = nearest_key(start, BROKER_KEYS)  # of a long one it would take long
        raise Refusal(Cause.INVALID_PARAMETER, f"key {start!r} is unknown; nearest known key is {nearest!r}")
    try:
        value = values.parse_value(known, text)
        binding = BROKER_BINDINGS.get(key)
        if binding is None:
            if known.has_effect:
                raise Refusal(Cause.SYSTEM_ERROR, f"key {key} is read at the start only: set it in broker.conf")
            return Setting(None, None, text)
        converted = binding.convert(value)
    except values.ValueRefusedError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"key {key!r} {error}") from error
    return Setting(binding.field, converted, binding.show(converted))
