"""The metrics of quotas, on brokers and nameservers alike."""

from functools import partial
from operator import attrgetter

from ledgermq.remoting.quotas import Quotas
from telemetry.metrics import Registry


def register_quotas(registry: Registry, quotas: Quotas) -> None:
    """Show for how long connections were not read because of each quota."""
    for quota in quotas:
        registry.counter(
            "ledgermq_throttled_seconds_total",
            "Time for which connections were not read because a quota was used up.",
            {"of": quota.of, "what": quota.what},
        ).function(partial(attrgetter("throttled_s"), quota))
