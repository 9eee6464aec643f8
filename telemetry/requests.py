"""How often each request was asked and refused, for the page of a nameserver or a controller."""

from ledgermq.remoting.codec.codes import request_name
from ledgermq.remoting.refusal import Cause
from telemetry.metrics import Counter, Registry


class RequestFigures:
    """Counters by request code and by cause of refusal."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._requests: dict[int, Counter] = {}
        self._refusals: dict[Cause, Counter] = {}

    def request(self, code: int) -> None:
        """Count a request."""
        counter = self._requests.get(code)
        if counter is None:
            # Only known codes get a label, so that a client cannot create series without limit.
            name = request_name(code)
            label = "unknown" if name.isdigit() or name.startswith("-") else name
            counter = self._registry.counter("ledgermq_requests_total", "Requests by code.", {"request": label})
            if label != "unknown":
                self._requests[code] = counter
        counter.add()

    def refusal(self, cause: Cause) -> None:
        """Count a refused request."""
        counter = self._refusals.get(cause)
        if counter is None:
            labels = {"cause": cause.slug}
            counter = self._registry.counter("ledgermq_refused_total", "Refused requests by cause.", labels)
            self._refusals[cause] = counter
        counter.add()
