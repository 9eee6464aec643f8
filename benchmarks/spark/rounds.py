"""Rounds of a measurement, and the table of what they took, with goals beside."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from benchmarks.spark.processes import cpu_s


def run(frame: DataFrame) -> None:
    """Carry a plan out and drop its rows."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass
class Rounds:
    """Seconds of each round by the clock and of CPU, for `records` records and `megabytes` of input."""

    records: int
    megabytes: float
    clock: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def run(self, act: Callable[[], object]) -> None:
        """Add a round."""
        began, began_cpu = time.perf_counter(), cpu_s()
        act()
        self.clock.append(time.perf_counter() - began)
        self.cpu.append(cpu_s() - began_cpu)

    @property
    def rate(self) -> float:
        """Records a second of the fastest round."""
        return self.records / min(self.clock)

    @property
    def median_rate(self) -> float:
        """Records a second of the median round."""
        return self.records / statistics.median(self.clock)

    @property
    def cpu_rate(self) -> float:
        """Records a CPU second of the cheapest round."""
        return self.records / min(self.cpu)

    @property
    def megabyte_rate(self) -> float:
        """MB of input a second of the fastest round."""
        return self.megabytes * self.rate / self.records


@dataclass(frozen=True)
class Goal:
    """At least so many of a unit: `k` thousand records a second, `MB` a second, or times the rate of a baseline."""

    least: float
    unit: str

    def text(self, name: str, of: dict[str, Rounds]) -> str:
        """The goal, what was reached by the clock, and whether that is enough."""
        own = of[name]
        if self.unit == "k":
            found, unit = own.rate / 1000, " k/s"
        elif self.unit == "MB":
            found, unit = own.megabyte_rate, " MB/s"
        else:
            found, unit = own.rate / of[self.unit].rate, f" x {self.unit}"
        met = "met" if found >= self.least else "MISSED"
        return f"{name:<22} {found:>9,.2f} of {self.least:,.2f}{unit:<40} {met}"


def print_rates(measured: dict[str, Rounds], baselines: list[str]) -> None:
    """Print a row for each measurement: rates, and the ratios to baselines by the clock and by CPU."""
    print(
        f"\nload {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; rates by the clock of the best and the median round"
    )
    print("ratios to baselines: best round by the clock / cheapest by CPU time (Python, workers and JVM together)")
    titles = "".join(f"{'/ ' + name:>34}" for name in baselines)
    print(f"{'':<34}{'k/s':>8}{'median':>8}{'MB/s':>8}{'k/CPU s':>9}{titles}")
    for name, own in measured.items():
        ratios = "".join(
            f"{f'{own.rate / measured[each].rate:.2f} / {own.cpu_rate / measured[each].cpu_rate:.2f}':>34}"
            for each in baselines
        )
        print(
            f"{name:<34}{own.rate / 1000:>8,.0f}{own.median_rate / 1000:>8,.0f}{own.megabyte_rate:>8,.0f}"
            f"{own.cpu_rate / 1000:>9,.0f}{ratios}"
        )


def print_goals(measured: dict[str, Rounds], goals: list[tuple[str, Goal]]) -> None:
    """Print each goal beside what was reached."""
    print("\ngoals, by the clock; those in k/s and MB/s are of a quiet machine like that of the reference")
    for name, goal in goals:
        print(goal.text(name, measured))
