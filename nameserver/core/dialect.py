"""Chooses the form of JSON for a client: standard, or that of fastjson, which does not quote numeric map keys.

Standard JSON is for clients since 4.9.4 and those that ask for it; old Go clients split fastjson's text at commas.

Source: apache/rocketmq `namesrv/.../processor/ClientRequestProcessor.java`.
"""

_STANDARD_SINCE_VERSION = 401  # V4_9_4


def wants_standard(version: int, accept_standard_json_only: bool) -> bool:
    """Whether a client of that version (ordinal of MQVersion) gets standard JSON for a route."""
    return accept_standard_json_only or version >= _STANDARD_SINCE_VERSION
