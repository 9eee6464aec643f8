"""A Spark session with the settings that the pipeline is measured with; users may bring their own."""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ledgermq.spark.errors import MissingToolError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log: Final = logging.getLogger(__name__)

JAVA_MIN: Final = 17
_JAVA_WAIT_S: Final = 30
_STARTS_MAX: Final = 5

Result = TypeVar("Result")

SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Unix sockets carry rows to and from Python workers about a fifth faster than TCP does.

The last one leaves out the checksums that Hadoop writes beside each file of a checkpoint on a local path, and the
processes that it starts for them, which take half of the time of a small micro-batch.
"""


def make_session(name: str, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """Return a session of this machine with the formats registered; under spark-submit, that of the submitted job.

    Without `settings` a session that this program has already is taken as it is, in whatever thread it was made.
    Without a master of the environment's, a new one has twice as many tasks at once as cores, since a worker and the
    JVM take turns, and four shuffle partitions a core.

    Raises:
        MissingToolError: no Java 17, or no pyspark or pyarrow.
    """
    check_tools()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from ledgermq.spark import register

    if settings is None:
        try:
            running = SparkSession.active()
        except PySparkRuntimeError:
            pass  # there is none
        else:
            register(running)
            return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if "SPARK_ENV_LOADED" not in os.environ:
        cores = os.cpu_count() or 1
        builder = builder.master(f"local[{2 * cores},2]").config("spark.sql.shuffle.partitions", str(4 * cores))
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def patiently(act: Callable[[], Result]) -> Result:
    """Start a query and wait for its end; start it again if Spark gave up waiting for its Python worker.

    That worker must connect within 10 s, which no setting changes, and which may be too short on a busy machine. The
    query has not read anything then.

    Args:
        act: starts the query and waits for it.

    Raises:
        StreamingQueryException: it failed for another reason, or five times for this one.
    """
    from pyspark.errors import StreamingQueryException

    for _ in range(_STARTS_MAX - 1):
        try:
            return act()
        except StreamingQueryException as error:
            if "Python worker failed to connect" not in str(error):
                raise
            _log.warning("Spark has not waited for its Python worker: the query is started again")
    return act()


def check_tools() -> None:
    """Check that Spark can start.

    Raises:
        MissingToolError: what is missing, and how to get it.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingToolError(f"{error.name} is not installed; run: pip install 'ledgermq[spark]'") from None
    version = java_version()
    if version is None:
        raise MissingToolError(f"no Java is found; Spark needs Java {JAVA_MIN} or newer, on PATH or in JAVA_HOME")
    if version < JAVA_MIN:
        raise MissingToolError(f"Java {version} is too old; Spark needs Java {JAVA_MIN} or newer")


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start; None without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None
