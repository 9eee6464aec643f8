import math
import re

import pytest

from telemetry.metrics import Gauge, MetricError, Registry

DROPPED = (
    "# HELP ledgermq_metric_series_dropped_total Label sets not shown because their metric has too many.\n"
    "# TYPE ledgermq_metric_series_dropped_total counter\n"
)


def rendered(registry: Registry) -> str:
    """The page without the registry's own metric."""
    text = registry.render()
    assert text.startswith(DROPPED)
    return text[len(DROPPED) :].split("\n", 1)[1]


def test_counter_gauge_and_histogram_render_in_text_format_exactly() -> None:
    registry = Registry()
    registry.counter("a_total", "Things seen.").add(3)
    registry.gauge("b_ratio", "A part.", {"topic": "t"}).set(0.25)
    histogram = registry.histogram("c_seconds", "Time.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value)
    assert rendered(registry) == (
        "# HELP a_total Things seen.\n"
        "# TYPE a_total counter\n"
        "a_total 3\n"
        "# HELP b_ratio A part.\n"
        "# TYPE b_ratio gauge\n"
        'b_ratio{topic="t"} 0.25\n'
        "# HELP c_seconds Time.\n"
        "# TYPE c_seconds histogram\n"
        'c_seconds_bucket{le="0.1"} 2\n'
        'c_seconds_bucket{le="1.0"} 3\n'
        'c_seconds_bucket{le="+Inf"} 4\n'
        "c_seconds_sum 7.65\n"
        "c_seconds_count 4\n"
    )


def test_an_observation_with_a_count_weighs_as_many() -> None:
    histogram = Registry().histogram("c_seconds", "Time.", bounds=(1,))
    histogram.observe(2, count=5)
    assert histogram.count == 5
    assert list(histogram.samples())[-2] == ("_sum", "", 10)


def test_labels_and_help_are_escaped() -> None:
    registry = Registry()
    registry.counter("a_total", 'One\\two\nthree "four".', {"topic": 'q"\\\n'}).add(1)
    assert rendered(registry) == (
        '# HELP a_total One\\\\two\\nthree "four".\n# TYPE a_total counter\na_total{topic="q\\"\\\\\\n"} 1\n'
    )


def test_constant_labels_come_first_on_every_series() -> None:
    registry = Registry({"cluster": "c", "node": "n0"})
    registry.gauge("a", "A.", {"peer": "n1"}).set(1)
    registry.histogram("b_seconds", "B.", bounds=(1,)).observe(1)
    page = rendered(registry)
    assert 'a{cluster="c",node="n0",peer="n1"} 1\n' in page
    assert 'b_seconds_bucket{cluster="c",node="n0",le="1.0"} 1\n' in page
    assert 'b_seconds_count{cluster="c",node="n0"} 1\n' in page


def test_the_same_labels_give_the_same_series() -> None:
    registry = Registry()
    first = registry.counter("a_total", "A.", {"topic": "t"})
    assert registry.counter("a_total", "A.", {"topic": "t"}) is first
    assert registry.counter("a_total", "A.", {"topic": "u"}) is not first


def test_a_function_is_read_at_each_scrape() -> None:
    registry = Registry()
    counted = [1]
    registry.counter("a_total", "A.").function(lambda: counted[0])
    assert "a_total 1\n" in registry.render()
    counted[0] = 2
    assert "a_total 2\n" in registry.render()


def test_a_failing_function_shows_nan_and_leaves_the_rest_of_the_page() -> None:
    registry = Registry()
    registry.gauge("a", "A.").function(lambda: 1 // 0)
    registry.gauge("b", "B.").set(1)
    assert "a NaN\n" in registry.render()
    assert "b 1\n" in registry.render()


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (True, "1"), (1e300, "1e+300"), (2**70, str(2**70))],
)
def test_unusual_values_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    registry = Registry()
    registry.gauge("a", "A.").set(value)
    assert f"a {text}\n" in registry.render()


def test_a_name_keeps_its_type_and_label_names() -> None:
    registry = Registry()
    registry.counter("a", "A.", {"topic": "t"})
    with pytest.raises(
        MetricError, match=re.escape("metric a is a counter with labels ('topic',), asked for as a gauge")
    ):
        registry.gauge("a", "A.", {"topic": "t"})
    with pytest.raises(MetricError, match=re.escape("asked for as a counter with labels ('group',)")):
        registry.counter("a", "A.", {"group": "g"})


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ü"])
def test_a_name_prometheus_refuses_is_refused(name: str) -> None:
    with pytest.raises(MetricError, match="metric name"):
        Registry().gauge(name, "A.")


@pytest.mark.parametrize("label", ["", "__a", "le", "a-b"])
def test_a_label_prometheus_refuses_is_refused(label: str) -> None:
    with pytest.raises(MetricError, match="label name"):
        Registry().gauge("a", "A.", {label: "x"})


@pytest.mark.parametrize("bounds", [(), (1, 1), (2, 1), (1, math.inf)])
def test_histogram_bounds_must_be_finite_and_rising(bounds: tuple[float, ...]) -> None:
    with pytest.raises(MetricError, match="rising"):
        Registry().histogram("a", "A.", bounds=bounds)


def test_label_sets_past_the_limit_are_counted_and_not_shown() -> None:
    registry = Registry(series_max=2)
    gauges: list[Gauge] = [registry.gauge("a", "A.", {"topic": str(i)}) for i in range(4)]
    for gauge in gauges:
        gauge.set(7)
    page = registry.render()
    assert page.count("a{topic=") == 2
    assert "ledgermq_metric_series_dropped_total 2\n" in page
