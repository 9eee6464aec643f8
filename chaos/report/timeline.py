"""The timeline of a run as inline SVG: one time axis for rates, latencies, fault bands and the role of each node."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from chaos.checkers.timing import percentile
from chaos.drills.record import DrillRecord, Injection, Sample

WIDTH = 1000
_LEFT, _RIGHT, _TOP = 90, 980, 26
_RATE_HEIGHT, _LATENCY_HEIGHT, _BAR_HEIGHT, _GAP = 150, 110, 18, 34
_BIN_S = 0.1
_BIN_MOST = 600
_TICKS = 10
_ROLES = {"master": "leads", "slave": "follows", "down": "down", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps seconds of the run to x coordinates."""

    end_s: float

    def x(self, at_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(max(at_s, 0.0), self.end_s) / self.end_s


def draw(record: DrillRecord) -> str:
    """Return the SVG element."""
    end_s = max([1.0, *(send.completed_s - record.began_s for send in record.sends[-1:] + record.acks[-1:])])
    end_s = max([end_s, *(one.end_s - record.began_s for one in record.injections)])
    axis = _Axis(end_s)
    names = sorted({node.name for sample in record.samples if sample.view for node in sample.view.nodes})
    latency_top = _TOP + _RATE_HEIGHT + _GAP
    bars_top = latency_top + _LATENCY_HEIGHT + _GAP
    bottom = bars_top + len(names) * (_BAR_HEIGHT + 6)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + 30}" role="img" aria-label="timeline of the run">',
        *_bands(record.injections, record.began_s, axis, bottom),
        *_rates(record, axis, _TOP),
        *_latencies(record, axis, latency_top),
        *_bars(record, names, axis, bars_top),
        *_ticks(axis, bottom),
        "</svg>",
    ]
    return "\n".join(parts)


def _bands(injections: Sequence[Injection], began_s: float, axis: _Axis, bottom: float) -> Iterator[str]:
    for one in injections:
        steps = one.events
        begin = axis.x((steps[0].begin_s if steps else one.begin_s) - began_s)
        end = max(axis.x((steps[-1].end_s if steps else one.end_s) - began_s), begin + 2)
        text = f"{one.drill.name}: " + "; ".join(f"{e.step.verb} {' '.join(e.step.words)}" for e in steps)
        yield (
            f'<g class="band {one.drill.family}"><title>{escape(text)}</title>'
            f'<rect x="{begin:.1f}" y="{_TOP}" width="{end - begin:.1f}" height="{bottom - _TOP:.0f}"/>'
            f'<line x1="{end:.1f}" x2="{end:.1f}" y1="{_TOP}" y2="{bottom:.0f}"/>'
            f'<text x="{begin:.1f}" y="{_TOP - 8}">{escape(one.drill.name)}</text></g>'
        )


def _rates(record: DrillRecord, axis: _Axis, top: float) -> Iterator[str]:
    bin_s = max(_BIN_S, axis.end_s / _BIN_MOST)
    acks = _counts([send.completed_s - record.began_s for send in record.acks], bin_s, axis.end_s)
    deliveries = _counts([one.at_s - record.began_s for one in record.deliveries], bin_s, axis.end_s)
    # so that a burst after an outage does not flatten everything else
    highest = max(1.0, 1.6 * percentile(acks, 90))
    yield _label(top, _RATE_HEIGHT, "per second", f"{highest / bin_s:,.0f}", "0")
    for name, counts in (("acks", acks), ("deliveries", deliveries)):
        points = " ".join(
            f"{axis.x((number + 0.5) * bin_s):.1f},{top + _RATE_HEIGHT * (1 - min(count / highest, 1)):.1f}"
            for number, count in enumerate(counts)
        )
        yield f'<polyline class="{name}" points="{points}"><title>{name} a second</title></polyline>'
    failed = [send for send in record.sends if send.completed_s and send.outcome.value != "ok"]
    y = top + _RATE_HEIGHT
    # at most one mark a pixel, however many sends failed
    for x in sorted({round(axis.x(send.completed_s - record.began_s)) for send in failed}):
        yield f'<line class="failed" x1="{x}" x2="{x}" y1="{y}" y2="{y + 8}"/>'


def _latencies(record: DrillRecord, axis: _Axis, top: float) -> Iterator[str]:
    """Draw the median and the longest latency of each bin, by the time of the call, on a logarithmic scale."""
    bin_s = max(_BIN_S, axis.end_s / _BIN_MOST)
    bins: dict[int, list[float]] = {}
    for send in record.acks:
        invoked_s = send.invoked_s - record.began_s
        bins.setdefault(int(invoked_s / bin_s), []).append(1000 * (send.completed_s - send.invoked_s))
    highest = max([10.0, *(max(values) for values in bins.values())])
    yield _label(top, _LATENCY_HEIGHT, "latency, ms", f"{highest:,.0f}", "1")
    for name, percent in (("p50", 50.0), ("longest", 100.0)):
        points = " ".join(
            f"{axis.x((number + 0.5) * bin_s):.1f},"
            f"{top + _LATENCY_HEIGHT * (1 - math.log(max(percentile(values, percent), 1.0)) / math.log(highest)):.1f}"
            for number, values in sorted(bins.items())
        )
        yield f'<polyline class="{name}" points="{points}"><title>{name} latency of sends</title></polyline>'


def _bars(record: DrillRecord, names: Sequence[str], axis: _Axis, top: float) -> Iterator[str]:
    """Draw one bar for each node, with the term at each new leader."""
    for row, name in enumerate(names):
        y = top + row * (_BAR_HEIGHT + 6)
        yield f'<text class="name" x="{_LEFT - 8}" y="{y + 13}">{escape(name)}</text>'
        for begin_s, end_s, role, term in _stretches(record.samples, name):
            x, end = axis.x(begin_s - record.began_s), axis.x(end_s - record.began_s)
            yield (
                f'<g class="role {role}"><title>{escape(name)} {_ROLES.get(role, role)}</title>'
                f'<rect x="{x:.1f}" y="{y}" width="{max(end - x, 1):.1f}" height="{_BAR_HEIGHT}"/></g>'
            )
            if role == "master" and term is not None:
                yield f'<text class="term" x="{x + 3:.1f}" y="{y + 13}">term {term}</text>'


def _stretches(samples: Sequence[Sample], name: str) -> Iterator[tuple[float, float, str, int | None]]:
    """Yield begin, end, role and term of each period in which a node kept its role, up to the last sample."""
    begin_s, role, term = 0.0, "", None
    for sample in samples:
        now, now_term = _role(sample, name), sample.term if _role(sample, name) == "master" else None
        if now != role or (now_term is not None and term is not None and now_term != term):
            if role:
                yield begin_s, sample.at_s, role, term
            begin_s, role, term = sample.at_s, now, now_term
        term = now_term if term is None else term
    if role:
        yield begin_s, samples[-1].at_s, role, term


def _role(sample: Sample, name: str) -> str:
    for node in sample.view.nodes if sample.view is not None else ():
        if node.name == name:
            return "paused" if node.state == "paused" else node.role
    return "unknown"


def _counts(times_s: Sequence[float], bin_s: float, end_s: float) -> list[float]:
    counts = [0.0] * (int(end_s / bin_s) + 1)
    for at_s in times_s:
        counts[min(int(at_s / bin_s), len(counts) - 1)] += 1
    return counts


def _label(top: float, height: float, what: str, highest: str, lowest: str) -> str:
    return (
        f'<text class="axis" x="{_LEFT - 8}" y="{top + 10}">{highest}</text>'
        f'<text class="axis" x="{_LEFT - 8}" y="{top + height / 2 + 4:.0f}">{what}</text>'
        f'<text class="axis" x="{_LEFT - 8}" y="{top + height}">{lowest}</text>'
        f'<line class="base" x1="{_LEFT}" x2="{_RIGHT}" y1="{top + height}" y2="{top + height}"/>'
    )


def _ticks(axis: _Axis, bottom: float) -> Iterator[str]:
    step_s = max(1, round(axis.end_s / _TICKS))
    for at_s in range(0, int(axis.end_s) + 1, step_s):
        yield f'<text class="tick" x="{axis.x(at_s):.1f}" y="{bottom + 18}">{at_s} s</text>'
