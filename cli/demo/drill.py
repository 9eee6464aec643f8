"""The order of events: stream, kill in mid-stream, restart, drain, compare.

acked:  0 %          40 %                    65 %           100 %
        |--- send ----X leader killed --------^ dead started --|-- drain, compare logs
        |--- receive ---------------------------------------------|
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from chaos.checkers.delivery import DeliveryHistory
from cli.demo.cluster import RunningCluster
from cli.demo.progress import Progress
from cli.demo.result import DemoResult, Timing, longest_gap_ms
from cli.demo.stream import LineStream
from cli.errors import CommandError

KILL_AT, START_AT = 0.40, 0.65
