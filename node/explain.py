"""`ledgermq config explain KEY`: what a key means, as text."""

from ledgermq.remoting.config_key import OURS, Key, unknown_key
from node.errors import UsageError
from node.kept_settings import FILE
from node.keys import BROKER_KEYS, CONTROLLER_KEYS, KEYS_OF_FILES, NAMESRV_KEYS, REASONS

_UNTIL_THE_STOP = {
    "namesrv.conf": "updateNamesrvConfig changes it until the nameserver",
    "controller.conf": "updateControllerConfig changes it until the controller",
}


def explain(name: str) -> str:
    """Return all that is known of a key, for each kind of file in which it may stand.

    Raises:
        UsageError: no such key; names the nearest one, if one resembles it.
    """
    files: dict[tuple[str, str], list[str]] = {}  # of each text, since a key may mean the same in several files
    for file, keys in KEYS_OF_FILES.items():
        if (key := keys.get(name)) is not None:
            files.setdefault((f"{key.name}: {key.help}", _describe(file, key)), []).append(file)
    if not files:
        raise UsageError(f"key {name!r} {unknown_key(name, {**BROKER_KEYS, **NAMESRV_KEYS, **CONTROLLER_KEYS})}")
    return "\n\n".join(f"{head}\n  file     {' and '.join(of)}\n{rest}" for (head, rest), of in files.items())


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
    if key.is_live and file in _UNTIL_THE_STOP:
        lines.append(f"  live     {_UNTIL_THE_STOP[file]} stops")
    elif key.is_live:
        lines.append(f"  live     updateBrokerConfig changes it, and keeps it in <storePathRootDir>/config/{FILE}")
    return "\n".join(lines)
