"""What a node's health port says: readiness, and single figures of /metrics. Standard library only: it starts fast."""

import http.client
import urllib.error
import urllib.request

from node.errors import CommandError, UsageError

_TIMEOUT_S = 3.0


def check_health(url: str) -> str:
    """What `url` (`.../livez` or `.../readyz`) says when all is well.

    Raises:
        CommandError: it says that it is not, or nobody answers.
        UsageError: `url` is not an http:// URL.
    """
    return _get(url).strip()


def read_gauge(node_url: str, name: str) -> float:
    """The value of the metric `name`, whatever its labels, of the node whose health port is at `node_url`.

    Raises:
        CommandError: nobody answers there, or there is no such metric.
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
        raise CommandError(f"{url} does not answer as a health port does: {error!r}") from error
    return text
