"""The command line of the doctor: what it prints, how it exits, what it refuses, and that it works beside a broker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import main
from doctor.check.run import check_store
from doctor.read.directory import open_layout
from doctor.read.progress import ProgressBar
from doctor.read.tail import follow
from tests.doctor.doctor_support import run_json, write_store
from tests.limits import WAIT_S
from tests.store.support import GOLDEN, fast_directory, golden

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


@pytest.fixture
def kill9(place: Path) -> Path:
    golden.restore_tree(GOLDEN / "store-classic/kill9", place / "kill9")
    return place / "kill9"


def restored(place: Path, tree: str) -> Path:
    target = place / tree.replace("/", "-")
    golden.restore_tree(GOLDEN / tree, target)
    return target


def test_check_prints_the_object_that_is_documented(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, ["check", kill9], 0)
    assert found.pop("notes") == ["abort file: the last run did not end cleanly"]
    assert found == {
        "format": "classic",
        "records": 593,
        "bytes": 361450,
        "queues": 23,
        "index_entries": 1205,
        "min_offset": 0,
        "max_offset": 361450,
        "faults": [],
    }


def test_check_names_a_fault_and_exits_with_1(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kill9 / "checkpoint").unlink()
    assert main(["store", "check", str(kill9)]) == 1
    assert "checkpoint at 0: checkpoint-missing: " in capsys.readouterr().out
    (fault,) = run_json(capsys, ["check", kill9], 1)["faults"]
    assert fault.keys() == {"file", "offset", "kind", "detail"}


@pytest.mark.parametrize("verb", ["inspect", "check", "export", "tail"])
@pytest.mark.parametrize("what", ["missing", "file", "empty", "log folder", "two members"])
def test_what_is_no_store_is_refused_in_one_line(
    verb: str, what: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "thing"
    match what:
        case "file":
            path.write_text("not a store")
        case "empty":
            path.mkdir()
        case "log folder":
            path = path / "commitlog"
            path.mkdir(parents=True)
        case "two members":
            (path / "dledger-n0/data").mkdir(parents=True)
            (path / "dledger-n1/data").mkdir(parents=True)
    assert main(["store", verb, str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kill9 / "commitlog/00000000000000065536").chmod(0)
    assert main(["store", "check", str(kill9)]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_reading_commands_change_nothing(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in kill9.rglob("*")}
    for words in (["inspect"], ["check"], ["tail"], ["export", "--limit", "3"]):
        assert main(["store", words[0], str(kill9), *words[1:]]) == 0
    capsys.readouterr()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in kill9.rglob("*")} == before


def test_inspect_says_what_is_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = restored(place, "store-dledger/healed/n0")
    facts = run_json(capsys, ["inspect", root], 0)
    assert (facts["format"], facts["min_offset"], facts["max_offset"]) == ("dledger", 0, 110593)
    assert facts["raft"] == {"directory": "dledger-n0", "term": 2, "voted_for": "n2", "committed_index": 203}
    assert [(row["first_index"], row["first_term"]) for row in facts["log_files"]] == [
        (0, 1),
        (56, 1),
        (115, 1),
        (175, 2),
    ]
    assert facts["log_files"][-1]["last_index"] == 203
    assert facts["topics"]["GoldenRaft"] == 184
    assert main(["store", "inspect", str(root)]) == 0
    assert "raft term 2, vote 'n2', committed index 203" in capsys.readouterr().out


def test_inspect_knows_batch_queues(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (queue,) = run_json(capsys, ["inspect", restored(place, "records/stores/batchcq")], 0)["queues"]
    assert (queue["min_offset"], queue["max_offset"], queue["batches"]) == (0, 8, 5)


def exported(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> list[dict[str, object]]:
    assert main(["store", "export", str(root), *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_export_gives_every_message_as_the_manifest_has_it(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = [json.loads(line) for line in (GOLDEN / "store-classic/kill9/messages.jsonl").read_text().splitlines()]
    lines = exported(capsys, kill9, "--body", "none")
    assert len(lines) == len(manifest)
    for line, row in zip(lines, manifest, strict=True):
        assert "body" not in line
        assert line["properties"] == row["properties"]
        for ours, theirs in (
            ("physical_offset", "physicalOffset"),
            ("topic", "topic"),
            ("queue_id", "queueId"),
            ("queue_offset", "queueOffset"),
            ("store_timestamp", "storeTimestamp"),
            ("message_id", "offsetMsgId"),
        ):
            assert line[ours] == row[theirs]


def test_export_chooses(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = exported(capsys, kill9, "--topic", "GoldenNormal", "--queue", "1", "--from", "100", "--to", "104")
    assert [line["queue_offset"] for line in queue] == [100, 101, 102, 103]
    (one,) = exported(capsys, kill9, "--key", "late-7")
    assert one["keys"] == ["late-7"]
    assert exported(capsys, kill9, "--key", str(one["message_id"])) == [one]
    time_ms = str(one["store_timestamp"])
    later = exported(capsys, kill9, "--from", time_ms, "--limit", "2", "--body", "base64")
    assert later[0]["physical_offset"] == one["physical_offset"]
    assert [line["physical_offset"] for line in exported(capsys, kill9, "--from", "65536", "--limit", "1")] == [65536]
    assert main(["store", "export", str(kill9), "--queue", "1"]) == 2
    assert main(["store", "export", str(kill9), "--from", "yesterday"]) == 2


def test_export_reads_raft_entries_and_bare_ones(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = exported(capsys, restored(place, "store-dledger/dead/n1"), "--limit", "1")[0]
    assert (line["entry_index"], line["term"], line["physical_offset"]) == (0, 1, 48)
    bare = exported(capsys, restored(place, "store-dledger/plain/p0"))
    assert [row["entry_index"] for row in bare] == list(range(44))


def test_tail_prints_the_last_ones_across_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_store(place / "store")
    assert main(["store", "tail", str(place / "store"), "-n", "15"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert lines[-1].endswith("T/0 @10  tags=A  b'body of message 20'".replace("b'", "'"))


def test_tail_follows_across_files(place: Path) -> None:
    write_store(place / "store", [3])
    news = follow(place / "store", None, 1)
    first = next(news)
    assert first is not None
    assert first.decode().body == b"body of message 2"  # type: ignore[union-attr]
    assert next(news) is None
    write_store(place / "store", [7] * 5)
    found = []
    while (item := next(news)) is not None:
        record = item.decode()
        assert record is not None
        found.append(record.body)
    assert found == [b"body of message %d" % number for number in range(35)]


def test_diff_names_the_first_record_that_differs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead, healed = restored(place, "store-dledger/dead/n1"), restored(place, "store-dledger/healed/n0")
    found = run_json(capsys, ["diff", dead, healed], 1)
    difference = found["difference"]
    assert (difference["a"]["entry_index"], difference["a"]["term"], difference["b"]["term"]) == (157, 1, 2)
    assert difference["a"]["keys"] == ["lost-0"]
    assert "body" in difference["fields"]
    assert main(["store", "diff", str(dead), str(healed)]) == 1
    assert "first difference at " in capsys.readouterr().out


def test_replicas_of_two_lengths_are_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, healed = restored(place, "store-dledger/one/n0"), restored(place, "store-dledger/healed/n2")
    found = run_json(capsys, ["diff", one, healed], 0)
    assert (found["difference"], found["ends"]) == (None, [68200, 110593])


def test_diff_refuses_what_cannot_be_replicas(place: Path, kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "diff", str(kill9), str(restored(place, "store-dledger/one/n0"))]) == 2
    assert "cannot be replicas" in capsys.readouterr().err


def test_all_of_it_works_beside_a_process_that_writes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = place / "store"
    root.mkdir()
    command = [sys.executable, "-m", "tests.doctor.live_writer", str(root)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        records = 0
        for _ in range(5):
            layout = open_layout(root)
            assert layout.holder == writer.pid
            result = check_store(layout, jobs=1)
            assert result.findings.faults == [], result.findings.as_json()
            assert result.records > records
            records = result.records
        assert main(["store", "repair", str(root), "--output", str(place / "copy")]) == 1
        assert f"process {writer.pid} has the store open" in capsys.readouterr().err
        assert main(["store", "tail", str(root)]) == 0
        writer.stdin.close()
        assert writer.wait(WAIT_S) == 0
    capsys.readouterr()
    assert run_json(capsys, ["check", root], 0)["records"] >= records


def test_a_bar_is_drawn_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        def __init__(self, is_terminal: bool) -> None:
            self.text = ""
            self._is_terminal = is_terminal

        def isatty(self) -> bool:
            return self._is_terminal

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None:
            pass

    for is_terminal in (True, False):
        stream = Terminal(is_terminal)
        bar = ProgressBar("check", 100, stream)  # type: ignore[arg-type]
        bar(50)
        bar.close()
        assert bool(stream.text) is is_terminal


def test_a_nodes_folder_is_answered_with_that_of_its_store(kill9: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = kill9.parent / "n0"
    (node / "logs").mkdir(parents=True)
    kill9.rename(node / "store")
    assert main(["store", "check", str(node)]) == 2
    assert f"; try {node / 'store'}" in capsys.readouterr().err
