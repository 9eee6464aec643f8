"""Opening an index: files, what of them to believe, and the thread that goes on with them."""

from dataclasses import replace

from store.directory.checkpoint import StoreCheckpointFile
from store.index.builder import IndexBuilder
from store.index.config import IndexConfig
from store.index.file_set import IndexFiles
from store.index.recovery import choose_start
from store.replicated_log import ReplicatedLog


def prepare_index(config: IndexConfig, file: StoreCheckpointFile, log_: ReplicatedLog, *, clean: bool) -> IndexBuilder:
    """Open the index over a recovered log; blocks, for a thread. Nothing is cut or entered before its first `go_on`.

    Raises:
        StoreFormatError: an index file of another length or with an impossible header.
        DiskFailedError, DiskReadError: an index file cannot be opened or read.
    """
    files = IndexFiles(config.directory, config.layout)
    try:
        start = choose_start(files, file.found, log_, clean=clean)
        vouched = file.found.index
        if vouched is not None and start.resume_offset < vouched.dispatched_offset:
            # what was vouched for is gone, and its place will be taken by other entries
            file.found = replace(file.found, index=None)
            file.save(file.found)
        return IndexBuilder(config, files, start)
    except BaseException:
        files.close()
        raise
