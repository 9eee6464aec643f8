"""The report as one HTML page: the verdict, what was done, what it cost, what was checked, how to repeat it."""

from collections.abc import Iterable, Sequence
from html import escape

from chaos.checkers.timing import percentile
from chaos.drills.schedule import Planned, text_of
from chaos.drills.verdict import DrillResult, DrillVerdict, Outage
from chaos.report.distribution import distribution
from chaos.report.timeline import draw

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2328;--soft:#5b6770;--paper:#fff;--line:#d5dbe0;--good:#1a7f45;--bad:#b42318;
--dim:#8a6100;--acks:#2563a8;--deliveries:#7a4fb0;--leads:#2563a8;--follows:#a9c4de;--down:#b42318;--paused:#d08a00}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaed;--soft:#9aa7b0;--paper:#14191d;--line:#333d44;--good:#4cc27c;
--bad:#ff7b6e;--dim:#e0b050;--acks:#6fb1f2;--deliveries:#b996ec;--leads:#6fb1f2;--follows:#2f4a63;--down:#ff7b6e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1040px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}figure{margin:0}figcaption{color:var(--soft)}
header{border-left:8px solid currentColor;padding-left:1rem}header.pass{color:var(--good)}
header.fail{color:var(--bad)}header.unknown{color:var(--dim)}header p{color:var(--ink);margin:.3rem 0}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);
vertical-align:top}th{color:var(--soft);font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.no{color:var(--bad);font-weight:600}.yes{color:var(--good);font-weight:600}
pre{background:color-mix(in srgb,var(--line) 35%,transparent);padding:.8rem;overflow-x:auto}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}svg .name,svg .axis{text-anchor:end}
svg .tick{text-anchor:middle}svg .term{fill:var(--paper);font-size:11px}svg .base{stroke:var(--line)}
polyline{fill:none;stroke-width:1.6}.acks{stroke:var(--acks)}.deliveries{stroke:var(--deliveries);stroke-dasharray:4 3}
.p50{stroke:var(--acks)}.longest{stroke:var(--bad)}.failed{stroke:var(--bad)}
.scale line{stroke-dasharray:2 4;stroke:var(--soft)}
.band rect{opacity:.16}.band line{stroke-dasharray:4 3;stroke:var(--soft)}
.kill rect{fill:#d33}.pause rect{fill:#36c}.network rect{fill:#db0}.move rect{fill:#2a6}
.disk rect{fill:#0bc}.clock rect{fill:#83c}
.role rect{fill:var(--line)}.master rect{fill:var(--leads)}.slave rect{fill:var(--follows)}.down rect{fill:var(--down)}
.paused rect{fill:var(--paused)}
"""
_LEGEND = (
    "Solid: acknowledgements. Dashed: deliveries. Ticks below the axis: sends that failed. Latency: median in blue,"
    " longest in red, by the time of the call. Bars, from the routes: strong blue leads, pale blue follows, red is"
    " down, amber is paused, grey is in no route."
)
_WORDS = {
    DrillVerdict.PASS: "every promise was kept",
    DrillVerdict.FAIL: "a promise was broken",
    DrillVerdict.UNKNOWN: "nothing is proved",
}


def render(result: DrillResult) -> str:
    """Return the page."""
    name = result.verdict.name
    title = f"{name}: {result.drill}, mode {result.mode}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            _banner(result),
            f"<h2>Timeline</h2><figure>{draw(result.record)}<figcaption>{_LEGEND}</figcaption></figure>",
            "<h2>What was done, and what it cost</h2>",
            _faults(result.outages(), result.record.began_s),
            "<h2>What was checked</h2>",
            _checks(result),
            "<h2>How to repeat</h2>",
            f"<pre>{escape(result.repeat)}</pre>",
            _schedule(result),
            "</body></html>\n",
        ]
    )


def _schedule(result: DrillResult) -> str:
    """Return the faults of this run with their times, for `--schedule`."""
    record = result.record
    planned = [Planned(one.drill, one.hold_s, max(0.0, one.begin_s - record.steady_s)) for one in record.injections]
    words = f"ledgermq chaos run --schedule faults.toml --mode {result.mode} --workload {result.workload}"
    return (
        "<p>The same drills at the same times, with this text as faults.toml:</p>"
        f'<pre>{words}</pre><pre id="schedule">{escape(text_of(planned))}</pre>'
    )


def _banner(result: DrillResult) -> str:
    f, figures = result.findings, result.figures()
    verdict = result.verdict
    broken = [check.what for check in result.checks() if check.holds is False]
    reason = "; ".join([f"not so: {what}" for what in broken] + result.troubles()) or _WORDS[verdict]
    facts = [
        f"{f.sent:,} sent, {f.acked:,} acknowledged, {f.failed:,} refused, {f.unknown:,} unknown",
        f"<b>{f.lost:,} lost</b>, {f.phantom + f.aborted:,} made up, {figures['out_of_order']:,} reordered,"
        f" {f.duplicates:,} duplicates",
        f"longest time without an acknowledgement <b>{figures['rto_ms']:,} ms</b>, without a delivery"
        f" {figures['consumer_rto_ms']:,} ms; brownout {figures['brownout_s']} s",
        f"send p50 {figures['send_p50_ms']} ms, p99 {figures['send_p99_ms']} ms; {figures['seconds']} s in all",
    ]
    word = verdict.name.lower()
    return (
        f'<header id="verdict" class="{word}">'
        f"<h1>{verdict.name}: {escape(result.drill)}, mode {escape(result.mode)}</h1>"
        f"<p>{escape(reason)}</p>{''.join(f'<p>{fact}</p>' for fact in facts)}</header>"
    )


def _faults(outages: Sequence[Outage], began_s: float) -> str:
    rows = [
        (
            escape(one.injection.drill.name),
            f"{one.injection.begin_s - began_s:.2f} to {one.injection.end_s - began_s:.2f} s",
            "<br>".join(
                f"{event.begin_s - began_s:.2f} s {event.step.verb} {escape(' '.join(event.step.words))}:"
                f" {escape(event.proof)}"
                for event in one.injection.events
            )
            + (f"<br>{escape(one.injection.trouble)}" if one.injection.trouble else ""),
            f"{one.injection.leader_before or '-'} → {one.injection.leader_after or '-'}",
            f"{one.rto_ms:,.0f}",
            f"{one.consumer_rto_ms:,.0f}",
            f"{one.recovery_ms:,.0f}",
        )
        for one in outages
    ]
    head = ("drill", "when", "steps and proofs", "leader", "RTO, ms", "consumers, ms", "after repair, ms")
    table = _table("faults", head, rows, numbers_from=4)
    if len(outages) <= 1:
        return table
    rtos = [one.rto_ms for one in outages]
    spread = ", ".join(
        f"{name} {percentile(rtos, percent):,.0f} ms" for name, percent in (("p50", 50), ("p90", 90), ("p99", 99))
    )
    return f"{table}<p>RTO of {len(rtos)} faults: {spread}, longest {max(rtos):,.0f} ms.</p>{distribution(rtos)}"


_KEPT = {True: '<span class="yes">yes</span>', False: '<span class="no">NO</span>', None: "unknown"}


def _checks(result: DrillResult) -> str:
    rows = [
        (
            check.code,
            escape(check.what),
            _KEPT[check.holds],
            escape(check.numbers),
        )
        for check in result.checks()
    ]
    return _table("checks", ("code", "promise", "kept", "numbers"), rows, numbers_from=9)


def _table(name: str, head: Iterable[str], rows: Iterable[Sequence[str]], *, numbers_from: int) -> str:
    def cells(tag: str, values: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number >= numbers_from else ''}>{value}</{tag}>"
            for number, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<table id="{name}"><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table>'
