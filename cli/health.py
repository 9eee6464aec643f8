"""Reads a node's health port: readiness, and single values of /metrics.

Standard library only, so that it starts fast.
"""

import http.client
import urllib.error
import urllib.request

from node.errors import CommandError, UsageError

_TIMEOUT_S = 3.0


def check_health(url: str) -> str:
    """Return the answer of `url` (`.../livez` or `.../readyz`) when the node is healthy.

    Raises:
        CommandError: the node is not healthy, or does not answer.
        UsageError: `url` is not an http:// URL.
    """
    return _get(url).strip()


def read_gauge(node_url: str, name: str) -> float:
    """Return the value of the metric `name`, whatever its labels, of the node whose health port is at `node_url`.

    Raises:
        CommandError: the node does not answer, or has no such metric.
        UsageError: `node_url` is not an http:// URL.
    """
    for line in _get(f"{node_url.rstrip('/')}/metrics").splitlines():
        metric, _, value = line.rpartition(" ")
        if metric.partition("{")[0] == name:
            return float(value)
    raise CommandError(f"{node_url} has no metric {name}")


def _get(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is not a URL of a health port: write http://HOST:PORT/readyz")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url}: {error.code} {error.read().decode(errors='replace').strip()}") from error
    except urllib.error.URLError as error:
        raise CommandError(f"{url} does not answer: {error.reason}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CommandError(f"{url} does not answer like a health port: {error!r}") from error
    return text
