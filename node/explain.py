"""`ledgermq config explain KEY`: what a key means, as text."""

from broker.admin.live_config import LIVE_FIELDS
from node.bindings import BROKER_BINDINGS
from node.errors import UsageError
from node.kept_settings import FILE
from node.keys import BROKER_KEYS, NAMESRV_KEYS, OURS, Key, nearest_key


def explain(name: str) -> str:
    """All that is known of a key, for each file it may stand in.

    Raises:
        UsageError: no such key; names the nearest one.
    """
    found = [(file, keys[name]) for file, keys in _FILES.items() if name in keys]
    if not found:
        nearest = nearest_key(name, {**BROKER_KEYS, **NAMESRV_KEYS})
        raise UsageError(f"key {name!r} is unknown; nearest known key is {nearest!r}")
    if len(found) == 2 and found[0][1] == found[1][1]:
        return _describe("broker.conf and namesrv.conf", found[0][1])
    return "\n\n".join(_describe(file, key) for file, key in found)


_FILES = {"broker.conf": BROKER_KEYS, "namesrv.conf": NAMESRV_KEYS}


def _describe(file: str, key: Key) -> str:
    origin = "a key of LedgerMQ's own" if key.origin == OURS else f"RocketMQ's {key.origin}"
    default = key.default_here or "none"
    if key.default_here != key.default:
        default += f" (RocketMQ: {key.default or 'none'})"
    lines = [
        f"{key.name}: {key.meaning}",
        f"  file     {file}",
        f"  type     {key.kind.replace('/', ', ')}",
        f"  default  {default}",
        f"  here     {key.effect}",
        f"  from     {origin}",
    ]
    binding = BROKER_BINDINGS.get(key.name)
    if file.startswith("broker.conf") and binding is not None and binding.field in LIVE_FIELDS:
        lines.append(f"  live     updateBrokerConfig changes it, and keeps it in <storePathRootDir>/config/{FILE}")
    return "\n".join(lines)
