"""Which of the two forms of JSON a client gets: standard, or fastjson's, where numeric map keys stand bare.

Standard is for clients since 4.9.4 and whoever asks; Go's old clients cut fastjson's text at commas.

Source: apache/rocketmq `namesrv/.../processor/ClientRequestProcessor.java`.
"""

_STANDARD_SINCE_VERSION = 401  # V4_9_4


def wants_standard(version: int, accept_standard_json_only: bool) -> bool:
    """Whether a client of that version (ordinal of MQVersion) gets standard JSON for a route."""
    return accept_standard_json_only or version >= _STANDARD_SINCE_VERSION
