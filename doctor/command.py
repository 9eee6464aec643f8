"""`ledgermq store VERB DIR`: parses the command, runs it, prints the result as text or JSON."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import UsageError

if TYPE_CHECKING:
    from doctor.check.run import CheckResult
    from doctor.read.directory import OffsetFile, StoreLayout

_EXIT_CODES = "exit codes: 0 clean, 1 faults or differences, 2 not a store or not readable"


_LIKE = "mappedFileSize{}, bytes, for a store without such files"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `store` with its verbs."""
    store = commands.add_parser("store", help="inspect, check and repair store directories, also those of RocketMQ")
    verbs = store.add_subparsers(metavar="VERB", required=True)
    _add(verbs, "inspect", "files, offsets, queues, topics, times, terms", _inspect)
    check = _add(verbs, "check", "check every file; report each fault with file and offset", _check)
    check.add_argument("--no-index", action="store_true", help="leave the key index out (messageIndexEnable=false)")
    check.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (default: one for each core)")
    _add_repair(verbs)
    _add_export(verbs)
    tail = _add(verbs, "tail", "the last messages", _tail)
    tail.add_argument("-n", type=int, default=10, dest="count", metavar="N", help="how many (default 10)")
    tail.add_argument("-f", "--follow", action="store_true", help="continue with messages as they arrive")
    diff = _add(verbs, "diff", "the first record in which two replicas differ", _diff)
    diff.add_argument("other", metavar="DIR2", type=Path)


def _add(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text, epilog=_EXIT_CODES)
    verb.add_argument("directory", metavar="DIR", type=Path, help="storePathRootDir, or a DLedger member's directory")
    verb.add_argument("--log", type=Path, metavar="DIR", help="the log's folder, if storePathCommitLog is set")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")
    verb.set_defaults(run=lambda arguments: _guarded(run, arguments))
    return verb


def _add_repair(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    repair = _add(verbs, "repair", "cut torn tails, make damage readable, rebuild queues and index", _repair)
    where = repair.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", type=Path, metavar="DIR", help="repair a copy there; DIR itself is not changed")
    where.add_argument("--in-place", action="store_true", help="repair DIR itself; no process may have it open")
    repair.add_argument(
        "--cut", type=Path, metavar="FILE", help="file for the bytes removed (default: beside the store)"
    )
    repair.add_argument("--queue-file-size", type=int, default=0, metavar="N", help=_LIKE.format("ConsumeQueue"))
    repair.add_argument("--index-slots", type=int, metavar="N", help="maxHashSlotNum, for a store without index files")


def _add_export(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = _add(verbs, "export", "messages as JSON lines", _export)
    export.add_argument("--topic", metavar="TOPIC")
    export.add_argument("--queue", type=int, metavar="ID", help="queue id")
    bound = "a time (2026-11-21T09:12, or ms), or an offset: in the queue with --queue, else physical"
    export.add_argument("--from", dest="begin", metavar="BOUND", help=f"first: {bound}")
    export.add_argument("--to", dest="end", metavar="BOUND", help="end, exclusive")
    export.add_argument("--key", metavar="KEY", help="a message key, unique id or message id")
    export.add_argument("--limit", type=int, metavar="N", help="largest number of messages")
    export.add_argument("--body", choices=("text", "base64", "none"), default="text", help="default: text")


def _guarded(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Turn an error of the disk into one line and exit code 2."""
    from doctor.read.directory import UnreadableError

    try:
        return run(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnreadableError(f"{error.filename or arguments.directory}: {error.strerror or error}") from error


def _open(arguments: argparse.Namespace) -> "StoreLayout":
    from doctor.read.directory import open_layout

    return open_layout(arguments.directory, arguments.log)


def _inspect(arguments: argparse.Namespace) -> int:
    from doctor.read.inspect import as_table, inspect_store

    facts = inspect_store(_open(arguments))
    print(json.dumps(facts) if arguments.json else as_table(facts))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from doctor.check.run import check_store
    from doctor.read.progress import ProgressBar

    layout = _open(arguments)
    bar = ProgressBar("check", sum(file.length for file in layout.log_files))
    try:
        result = check_store(layout, with_index=not arguments.no_index, jobs=arguments.jobs, on_progress=bar)
    finally:
        bar.close()
    if arguments.json:
        print(json.dumps(result.as_json()))
    else:
        _print_check(result)
    return 1 if result.findings.faults else 0


def _print_check(result: "CheckResult") -> None:
    for fault in sorted(result.findings.faults):
        print(f"{fault.file} at {fault.offset}: {fault.kind}: {fault.detail}")
    for note in result.findings.notes:
        print(f"note: {note}")
    print(
        f"{result.format}: {result.records} records in [{result.min_offset}, {result.max_offset}), "
        f"{result.queues} queues, {result.index_entries} index entries: {len(result.findings.faults) or 'no'} faults"
    )


def _repair(arguments: argparse.Namespace) -> int:
    from doctor.read.progress import ProgressBar
    from doctor.repair.run import repair_store
    from ledgermq.message.index_unit import ENTRIES_DEFAULT, SLOTS_DEFAULT, IndexLayout

    layout = _open(arguments)
    slots = arguments.index_slots
    bar = ProgressBar("repair", sum(file.length for file in layout.log_files) * (2 if arguments.output else 1))
    try:
        result = repair_store(
            layout,
            output=arguments.output,
            side_path=arguments.cut,
            index=IndexLayout(slots, slots * (ENTRIES_DEFAULT // SLOTS_DEFAULT)) if slots else None,
            queue_file_size=arguments.queue_file_size,
            on_progress=bar,
        )
    finally:
        bar.close()
    if arguments.json:
        print(json.dumps(result.as_json()))
        return 1 if result.check.findings.faults else 0
    _print_check(result.check)
    for sentence in (*result.notes, *(f"not repaired: {place}" for place in result.log.not_repaired)):
        print(sentence)
    print(f"repaired: {result.directory}; {result.log.replaced} places inside the log were made readable")
    if result.side_file is not None:
        print(f"{result.cut_bytes} bytes were removed from the log and saved in {result.side_file}")
    return 1 if result.check.findings.faults else 0


def _export(arguments: argparse.Namespace) -> int:
    from itertools import islice

    from doctor.read.decoded import as_json
    from doctor.read.export import Choice, choose, parse_bound

    if arguments.queue is not None and arguments.topic is None:
        raise UsageError("--queue needs --topic: queue ids are per topic")
    begin, end = (None if text is None else parse_bound(text) for text in (arguments.begin, arguments.end))
    choice = Choice(topic=arguments.topic, queue_id=arguments.queue, begin=begin, end=end, key=arguments.key)
    for found, record in islice(choose(_open(arguments), choice, _print_gap), arguments.limit):
        print(json.dumps(as_json(found, record, body=arguments.body)))
    return 0


def _print_gap(file: "OffsetFile", start: int, end: int, detail: str) -> None:
    print(f"{file.path} at {start}: {end - start} bytes are not a record: {detail}", file=sys.stderr)


def _tail(arguments: argparse.Namespace) -> int:
    from doctor.read.decoded import Found, as_json, as_text
    from doctor.read.export import last_records
    from doctor.read.tail import follow

    def show(found: Found) -> None:
        record = found.decode()
        print(json.dumps(as_json(found, record)) if arguments.json else as_text(found, record), flush=True)

    if not arguments.follow:
        for found in last_records(_open(arguments), arguments.count):
            show(found)
        return 0
    for news in follow(arguments.directory, arguments.log, arguments.count):
        if news is not None:
            show(news)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from doctor.read.diff import compare
    from doctor.read.directory import open_layout

    found = compare(_open(arguments), open_layout(arguments.other))
    difference = found.difference
    if arguments.json:
        facts: dict[str, Any] = {"start": found.start, "end": found.end, "ends": found.ends}
        print(json.dumps({**facts, "difference": None if difference is None else difference.as_json()}))
    elif difference is None:
        print(f"no difference in [{found.start}, {found.end}); the logs end at {found.ends[0]} and {found.ends[1]}")
    else:
        fields = ", ".join(difference.fields)
        print(f"first difference at {difference.offset}, in the record at {difference.record_offset}: {fields}")
        for mark, side in zip("ab", difference.sides, strict=True):
            print(f"{mark}: {side.as_text()}")
    return 1 if difference is not None else 0
