"""One Spark session for all tests that need one, since it takes some seconds to start."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ledgermq.spark.errors import MissingToolError
from ledgermq.spark.session import check_tools, make_session

SETTINGS = {
    "spark.master": "local[2,2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.shuffle.compress": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        check_tools()
    except MissingToolError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = make_session("tests", SETTINGS | warehouse)
    yield session
    session.stop()
