"""`ledgermq config explain KEY`: what a key means, as text."""

from ledgermq.remoting.config_key import OURS, Key, unknown_key
from node.errors import UsageError
from node.kept_settings import FILE
from node.keys import BROKER_KEYS, NAMESRV_KEYS, REASONS

_FILES = {"broker.conf": BROKER_KEYS, "namesrv.conf": NAMESRV_KEYS}


def explain(name: str) -> str:
    """All that is known of a key, for each file it may stand in.

    Raises:
        UsageError: no such key; names the nearest one, if one resembles it.
    """
    found = [(file, keys[name]) for file, keys in _FILES.items() if name in keys]
    if not found:
        raise UsageError(f"key {name!r} {unknown_key(name, {**BROKER_KEYS, **NAMESRV_KEYS})}")
    texts = [(file, f"{key.name}: {key.help}", _describe(file, key)) for file, key in found]
    if len(texts) == 2 and texts[0][1:] == texts[1][1:]:
        texts = [(" and ".join(_FILES), *texts[0][1:])]
    return "\n\n".join(f"{head}\n  file     {file}\n{rest}" for file, head, rest in texts)


def _describe(file: str, key: Key) -> str:
    origin = "a key of LedgerMQ's own" if key.origin == OURS else f"RocketMQ's {key.origin}"
    effect = "in effect" if key.has_effect else f"no effect: {REASONS[key.reason]}"
    default = key.default_here or "none"
    if key.default_here != key.default:
        default += f" (RocketMQ: {key.default or 'none'})"
    lines = [
        f"  type     {key.kind.name.replace('/', ', ')}",
        f"  default  {default}",
        f"  here     {effect}." + (f" {key.note}" if key.note else ""),
        f"  from     {origin}",
    ]
    if key.is_live and file == "namesrv.conf":
        lines.append("  live     updateNamesrvConfig changes it until the nameserver stops")
    elif key.is_live:
        lines.append(f"  live     updateBrokerConfig changes it, and keeps it in <storePathRootDir>/config/{FILE}")
    return "\n".join(lines)
