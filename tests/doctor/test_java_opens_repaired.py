"""RocketMQ's own `DefaultMessageStore` opens what the doctor repaired, and reads every message that is left.

The program is the one that measured the golden variants: `tests/golden/generator/java/Recover.java`.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from doctor.check.run import check_store
from doctor.read.directory import open_layout
from doctor.repair.run import repair_store
from ledgermq.message.index_unit import IndexLayout
from tests.doctor.doctor_support import restore, variants
from tests.jvm import rocketmq_jars
from tests.store.support import GOLDEN

pytestmark = [pytest.mark.java, pytest.mark.cluster]

NAMES = [
    *("clean-cq-all-missing", "clean-index-missing", "clean-flip-middle-file", "clean-flip-last-magic"),
    *("clean-log-bad-length", "clean-checkpoint-zero", "kill9", "kill9-cq-topic-missing", "kill9-log-hole"),
    *("kill9-flip-middle-of-last-file", "kill9-torn-last-3"),
]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The generator's runner of Java programs, working below `tmp_path`."""
    monkeypatch.setenv("LIB", str(rocketmq_jars()))
    monkeypatch.setenv("WORK", str(tmp_path))
    spec = importlib.util.spec_from_file_location("golden_harness", GOLDEN / "generator/harness.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    found.compile_all()
    return found


def test_rocketmq_reads_everything_that_a_repair_left_and_leaves_it_clean(harness: Any, tmp_path: Path) -> None:
    by_name = {variant["name"]: variant for variant in variants("store-classic")}
    records = {}
    for name in NAMES:
        damaged = restore("store-classic", by_name[name], tmp_path / name / "damaged")
        sizes = IndexLayout(100, 400)
        repaired = repair_store(
            open_layout(damaged), output=tmp_path / name / "store", queue_file_size=1200, index=sizes
        )
        assert repaired.check.findings.faults == []
        records[name] = repaired.check.records
    (tmp_path / "keys.txt").write_text("GoldenNormal none\n")
    harness.run(tmp_path, "Recover", "keys.txt", "65536", "1200", "100", "400", *(f"{name}/store" for name in NAMES))
    for name in NAMES:
        recovered = json.loads((tmp_path / name / "recovered.json").read_text())
        assert recovered["loaded"], name
        after = recovered["afterStart"]
        assert after["readableThroughQueues"] == records[name], name
        assert sum(queue["wrong"] for queue in after["queues"].values()) == 0, name
        assert after["dispatchBehindBytes"] == 0, name
        assert check_store(open_layout(tmp_path / name / "store"), jobs=1).findings.faults == [], name
