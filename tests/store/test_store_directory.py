"""Who has the directory, what it is, and how the last run ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.directory.store_directory import FORMAT_NAME, FORMAT_VERSION, StoreDirectory
from store.errors import StoreFormatError, StoreLockedError

HOLDER = """
import sys
from pathlib import Path
from store.directory.store_directory import StoreDirectory
StoreDirectory(Path(sys.argv[1]), "classic")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_gets_the_pid_of_the_first(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match=f"held by process {holder.pid}") as caught:
            StoreDirectory(tmp_path, "classic")
        assert (caught.value.pid, caught.value.file) == (holder.pid, tmp_path / "lock")
        holder.kill()
        holder.wait()
        directory = StoreDirectory(tmp_path, "classic")  # a lock dies with its process
        assert not directory.was_clean
        directory.close(clean=True)


def test_a_second_store_of_the_same_process_is_locked_out_too(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path, "classic")
    (tmp_path.parent / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path.parent / "link"):
        with pytest.raises(StoreLockedError) as caught:
            StoreDirectory(path, "classic")
        assert caught.value.pid == os.getpid()
    directory.close(clean=True)
    StoreDirectory(tmp_path, "classic").close(clean=True)


LOCKER = "import fcntl, sys; fcntl.{}(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_locked(path: Path, call: str) -> bool:
    done = subprocess.run([sys.executable, "-c", LOCKER.format(call), str(path)], capture_output=True, check=False)
    return b"BlockingIOError" in done.stderr


def test_the_lock_is_the_one_that_java_takes_and_stays_when_somebody_reads_the_file(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path, "classic")
    assert is_locked(tmp_path / "lock", "lockf")
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert is_locked(tmp_path / "lock", "flock")
    directory.close(clean=True)
    assert not is_locked(tmp_path / "lock", "flock")


def test_the_abort_file_is_there_until_a_clean_stop(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path, "classic")
    assert directory.was_clean
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    directory.close(clean=False)
    again = StoreDirectory(tmp_path, "classic")
    assert not again.was_clean
    again.close(clean=True)
    assert not (tmp_path / "abort").exists()


def test_a_raft_store_leaves_no_abort_file_of_java_s_behind_a_crash(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("4711")
    directory = StoreDirectory(tmp_path, "raft")
    assert not directory.was_clean
    assert (tmp_path / "abort").exists()
    directory.recovered()
    assert not (tmp_path / "abort").exists()
    directory.close(clean=False)
    again = StoreDirectory(tmp_path, "raft")
    assert not again.was_clean
    again.close(clean=True)
    last = StoreDirectory(tmp_path, "raft")
    assert last.was_clean
    last.close(clean=True)


def test_a_directory_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    StoreDirectory(tmp_path, "raft").close(clean=True)
    with pytest.raises(StoreFormatError, match="'raft'; the configuration asks for 'classic'") as caught:
        StoreDirectory(tmp_path, "classic")
    assert caught.value.file == tmp_path / FORMAT_NAME
    StoreDirectory(tmp_path, "raft").close(clean=True)


@pytest.mark.parametrize(
    ("content", "remark"),
    [
        (json.dumps({"format": FORMAT_VERSION + 1, "kind": "classic"}), f"says format {FORMAT_VERSION + 1}"),
        ("{", "is not a store's format file"),
        ("[]", "is not a store's format file"),
        ('{"format": 1}', "is not a store's format file"),
        ("\xff", "is not a store's format file"),
    ],
)
def test_a_newer_or_unreadable_format_is_refused_and_left_alone(tmp_path: Path, content: str, remark: str) -> None:
    (tmp_path / FORMAT_NAME).write_text(content, "latin-1")
    with pytest.raises(StoreFormatError, match=remark):
        StoreDirectory(tmp_path, "classic")
    assert sorted(path.name for path in tmp_path.iterdir()) == [FORMAT_NAME, "lock"]


def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(4097))
    with pytest.raises(StoreFormatError, match="4097 bytes"):
        StoreDirectory(tmp_path, "classic")


def test_the_config_folder_is_made_when_asked_for(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path, "classic")
    assert directory.config == tmp_path / "config"
    assert directory.config.is_dir()
    directory.close(clean=True)
