"""What a process says once at its start about keys that do nothing here."""

from collections.abc import Mapping

from cli.said import Said

_GROUPS: Mapping[str, str] = {
    "j": "no effect here, they tune Java's threads, queues and buffers",
    "d": "no effect here, done differently",
    "f": "no effect here, their features are not in this version",
}
_PROTECTIONS = ("aclEnable", "authenticationEnabled", "authorizationEnabled", "useTLS")


def list_notices(said: Said) -> list[str]:
    """One sentence per reason, with the keys it is about; one more when protection was asked for that is not there."""
    notices = []
    for tag, reason in _GROUPS.items():
        names = [name for name in said.properties if said.keys[name].tag == tag]
        if names:
            notices.append(f"{', '.join(names)}: {reason}")
    notices += [
        f"WARNING: {name}=true at {said.place(name)} protects nothing, this version does not have it"
        for name in _PROTECTIONS
        if said.value(name) is True
    ]
    return notices
