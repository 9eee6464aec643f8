"""The stores on which a campaign can run, by name."""

from dataclasses import replace
from functools import partial

from chaos.crash.campaign import Mode, StoreWorkload, run_seed
from chaos.crash.classic import ClassicSettings, ClassicWorkload
from chaos.crash.group import run_group_seed
from chaos.crash.raft import RaftCrashSettings, RaftWorkload
from chaos.crash.tables import TablesWorkload
from store.log.flusher import FlushMode

_LONG_QUEUE = ClassicSettings(
    queue_file_size_bytes=1600, body_size_max=60, long_property=0, topics=1, batch_max=12, steps=20
)

_STORES: dict[str, StoreWorkload] = {
    "classic-sync": ClassicWorkload(ClassicSettings()),
    "classic-async": ClassicWorkload(ClassicSettings(flush_mode=FlushMode.ASYNC)),
    "classic-queue": ClassicWorkload(_LONG_QUEUE),
    "classic-syncfs": ClassicWorkload(replace(_LONG_QUEUE, queue_files_synced_singly=0)),
    "classic-held": ClassicWorkload(replace(_LONG_QUEUE, topics=3, hold_from=0)),
    "classic-index": ClassicWorkload(ClassicSettings(has_index=True, body_size_max=200)),
    "classic-pool": ClassicWorkload(ClassicSettings(flush_mode=FlushMode.ASYNC, pool_count=3)),
    "raft": RaftWorkload(RaftCrashSettings()),
    "tables": TablesWorkload(),
}

_SMALL: dict[str, StoreWorkload] = {
    "classic-small": ClassicWorkload(ClassicSettings(steps=3, batch_max=2, body_size_max=300, file_size_bytes=4096)),
    "raft-small": RaftWorkload(RaftCrashSettings(steps=4, batch_max=2, body_size_max=300, data_file_size_bytes=4096)),
}

MODES: dict[str, Mode] = {name: partial(run_seed, workload) for name, workload in _STORES.items()} | {
    "raft-group": run_group_seed
}

SMALL: dict[str, Mode] = {name: partial(run_seed, workload) for name, workload in _SMALL.items()}
"""Workloads so short that every subset of the sectors that a power cut may lose can be judged."""
