"""What one request may cost: processor time of the node that serves it, on a machine as fast as this one is now."""

import time
from typing import Final

import orjson

REQUEST_CPU_S: Final = 0.3
"""Most processor time of a request, on the machine on which the reference below was measured."""

_REFERENCE_S: Final = 0.035
_ROUNDS: Final = 3


def limit_cpu_s() -> float:
    """`REQUEST_CPU_S`, longer on a slower machine."""
    return REQUEST_CPU_S * slowness()


def slowness() -> float:
    """How many times longer than the reference a piece of the same kind of work takes this process now; at least 1."""
    return max(1.0, max(_sample_s() for _ in range(_ROUNDS)) / _REFERENCE_S)


def _sample_s() -> float:
    began = time.process_time()
    rows = {}
    for number in range(20_000):
        row = {"brokerOffset": number, "consumerOffset": 0, "lastTimestamp": 0, "topic": "a topic"}
        rows[f"queue {number}"] = orjson.dumps(row)
    b",".join(rows.values())
    return time.process_time() - began
