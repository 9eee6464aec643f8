"""One draft for a whole batch, if no message of it has special properties.

    properties of all, joined --one search--> nothing special --> `BatchDraft`
                                        '---> something special --> None: the messages are handled one by one

Most batches are of the first kind; they cost a few loops over all their messages, and no draft for each message.
"""

import re
from typing import Final

from broker.append.target import SendTarget
from ledgermq.message.batch import Cut
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX, find_property
from store.log.drafts import BatchDraft, QueuedDraft

TAGS: Final = b"TAGS\x01"
_asks: Final = re.compile(rb"\x02(?:CLUSTER|POP_CK|INNER_|DELAY|TRAN_MSG|TIMER_DEL|__SHARDINGKEY)").search
_TAGGED: Final = b"\x02" + TAGS


def tags_code_at(properties: bytes, at: int) -> int:
    """Return the tags code of a message with these properties, which end with 0x02; `at` is the last `TAGS`."""
    if at == 0 or properties[at - 1] == 2:
        return tags_code(properties[at + 5 : properties.find(b"\x02", at)])
    return tags_code(find_property(properties, b"TAGS") or b"")


def plain_batch(
    target: SendTarget,
    body: bytes | memoryview,
    cuts: list[Cut],
    properties: list[bytes],
    mark: bytes,
    overhead: int,
    record_max: int,
) -> BatchDraft | None:
    """Return one draft of several messages without special properties, all within their limits; None for others.

    The caller sets header and hosts.

    Args:
        target: the queue.
        body: of the request.
        cuts: of each message, as `cut_batch` found them.
        properties: of each, likewise.
        mark: text that the broker adds to the properties of each.
        overhead: bytes of a record without body and properties.
        record_max: largest size of a record in bytes.
    """
    joined = b"\x02" + b"\x02".join(properties)
    if target.needs_key or len(cuts) == 1 or _asks(joined):
        return None
    ended = b"\x02" + mark
    texts = [own + (mark if not own or own[-1] == 2 else ended) for own in properties]
    sizes = [overhead + end - start + len(text) for (_, start, end), text in zip(cuts, texts, strict=True)]
    if max(map(len, texts)) > PROPERTIES_LENGTH_MAX or max(sizes) > record_max:
        return None
    tags_codes = (
        [tags_code_at(text, at) if (at := text.rfind(TAGS)) >= 0 else 0 for text in texts]
        if _TAGGED in joined
        else [0] * len(texts)
    )
    draft = BatchDraft(body, cuts, texts, tags_codes, sizes)
    draft.topic, draft.queue_id, draft.queue, draft.tally = target.topic, target.queue_id, target.queue, target.tally
    return draft


def answered_as_one(drafts: list[QueuedDraft]) -> QueuedDraft:
    """Return a draft by which a request is answered whose messages are placed as `drafts`, one each."""
    if len(drafts) == 1:
        return drafts[0]
    batch = BatchDraft(b"", (), (), (), [draft.size for draft in drafts])
    batch.queue_id, batch.parts = drafts[0].queue_id, drafts
    return batch
