"""What the index's tests share."""

from pathlib import Path

from ledgermq.message.index_unit import IndexLayout
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import record_size
from store.index.batch import Entries
from store.index.config import IndexConfig
from store.index.file_set import IndexFiles
from store.index.service import IndexService
from store.log.commit_log import CommitLogConfig
from store.log.drafts import QueuedDraft
from store.opening import OpenStore, open_classic_store
from store.store_config import StoreConfig
from tests.store.support import HOST, put_all, queued

LAYOUT = IndexLayout(slots=7, entries=20)
FOREVER = (0, 1 << 62)


def enter(files: IndexFiles, entries: Entries) -> None:
    """Put all entries, into as many files as it needs."""
    while entries:
        entries = entries.behind(files.put(entries))


async def open_indexed(
    root: Path,
    *,
    layout: IndexLayout = LAYOUT,
    is_safe: bool = False,
    file_size: int = 4096,
    queue_file_size: int = 200,
) -> OpenStore:
    """A classic store with small files and an index; no checkpoint but the last, unless asked for."""
    return await open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=queue_file_size,
            checkpoint_interval_ms=3_600_000,
            index=IndexConfig(
                directory=root / "index", slot_count=layout.slots, entry_count=layout.entries, is_safe=is_safe
            ),
        ),
        CommitLogConfig(directory=root / "commitlog", store_host=HOST, file_size_bytes=file_size),
    )


def index_of(store: OpenStore) -> IndexService:
    index = store.store.index
    assert index is not None
    return index


def keyed(
    store: OpenStore,
    keys: str | None,
    unique: str | None = None,
    *,
    topic: str = "T",
    sys_flag: int = 0,
    body: bytes = b"body",
) -> QueuedDraft:
    """A draft with keys."""
    draft = queued(store.store.queues.get(topic.encode(), 0), body, sys_flag=sys_flag)
    properties = {"KEYS": keys, "WAIT": "true", "UNIQ_KEY": unique}
    draft.properties = encode_properties({name: value for name, value in properties.items() if value is not None})
    draft.size = record_size(len(draft.body), len(draft.topic), len(draft.properties), sys_flag, v2=False)
    return draft


async def put_keyed(store: OpenStore, keys: str | None, unique: str | None = None, **more: str | int) -> int:
    """Put one message; return its physical offset."""
    draft = keyed(store, keys, unique, **more)  # type: ignore[arg-type]
    await put_all(store, [draft])
    return draft.physical_offset


async def found(store: OpenStore, key: str, topic: str = "T", count: int = 64) -> list[int]:
    """Return all offsets of a key in the index, newest first."""
    return (await index_of(store).query(topic, key, count, *FOREVER)).offsets
