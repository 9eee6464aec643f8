"""mqadmin in one JVM: a command's words in, what it printed out, made comparable."""

import base64
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.jvm import SHORT_LIFE, compiled
from tests.limits import STRANGER_WAIT_S, WAIT_S
from tests.mqadmin.cases import Case

_HERE = Path(__file__).parent
_JVM = ("-Djava.security.manager=allow", "-Xms96m", "-Xmx256m", *SHORT_LIFE)
_NETWORK = "-Djava.net.preferIPv4Stack=true"  # message ids are short then
_AGAIN_S = 0.5
_LATE = re.compile(r"Remoting(Timeout|SendRequest|Connect)Exception")
_MASKS = (
    (r"(?m)^\s+(at |\.\.\. \d+ more|Suppressed:).*\n?", ""),
    (r"(?m)^WARNING: .*\n?", ""),
    (r"(?i)(commitLog ?offset)[=:]\s*\d+", r"\1=<number>"),
    (r"\b[0-9A-F]{32}\b", "<id>"),
    (r"\b\d+\.\d+\.\d+\.\d+@\d+#\d+", "<client>"),
    (r"@[0-9a-f]{5,}\b", "@<hash>"),
    (r"\b\d+\.\d+\.\d+\.\d+(:\d+)?", "<host>"),
    (r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(,\d+)?", "<time>"),
    (r"-?\b\d+\.\d+(E-?\d+)?", "<number>"),
    (r"\b\d{4,}\b", "<number>"),
)


_MEMBER = re.compile(r"\b[1-9](?=[:=]\"?<host>)|(?<=#brokerId )[1-9]$")
"""A follower's broker id: which ones there are depends on who leads."""


class Driver:
    """The JVM; `close` ends it.

    Args:
        jars: the class path of mqadmin.
        namesrv: `host:port` of the nameserver that commands without `-n` ask.
        work: a folder for what commands read and write.
    """

    def __init__(self, jars: str, namesrv: str, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        (work / "conf").mkdir(exist_ok=True)
        quiet = '<configuration><root level="OFF"/></configuration>'
        (work / "conf" / "rmq.logback-test.xml").write_text(quiet)
        places = (f"-Duser.home={work}", f"-Drocketmq.home.dir={work}", f"-Drocketmq.client.logRoot={work}/logs")
        class_path, main = compiled(_HERE / "Driver.java", jars)
        with (work / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *_JVM, _NETWORK, *places, "-cp", f"{work / 'conf'}:{class_path}", main, namesrv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=work,
            )

    def run(self, case: Case, values: Mapping[str, str]) -> str:
        """What the command printed; asked again until it has settled, if the case says how that looks."""
        deadline = time.monotonic() + WAIT_S
        while True:
            began = time.monotonic()
            printed = self.ask(case.words.format(**values).split(), case.limit_ms)
            if os.environ.get("MQADMIN_TIMES"):
                print(f"{time.monotonic() - began:6.2f} s {case.words}")
            settled = not case.until or re.search(case.until.format(**values), printed)
            if settled or time.monotonic() > deadline:
                return printed
            time.sleep(_AGAIN_S)

    def ask(self, words: Sequence[str], limit_ms: int) -> str:
        """Return what one command printed, interrupted after `limit_ms`. No word may hold a tab or a line end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([str(limit_ms), *words]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended at {words}"
        return base64.b64decode(line).decode()

    def ask_until_answered(self, *words: str) -> str:
        """As `ask`, once more when a node answered too late: mqadmin waits for 3 to 5 s only.

        The command may take effect twice.
        """
        deadline = time.monotonic() + STRANGER_WAIT_S
        while True:
            printed = self.ask(words, int(STRANGER_WAIT_S * 1000))
            if not _LATE.search(printed) or time.monotonic() > deadline:
                return printed
            time.sleep(_AGAIN_S)

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait(30)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        for left in Path("/tmp").glob("MqaStatic-*"):  # where mqadmin keeps mappings, wherever it works
            left.unlink(missing_ok=True)


def comparable(case: Case, printed: str, values: Mapping[str, str]) -> str:
    """What is printed without what differs from run to run: addresses, ids, times, measures."""
    for name in ("address", "namesrv", "work", "broker", "cluster"):
        printed = re.sub(re.escape(values[name]) + r"\b", f"<{name}>", printed)
    for pattern, mask in _MASKS:
        printed = re.sub(pattern, mask, printed)
    if not case.numbers:
        printed = re.sub(r"-?\b\d+(?=\b|[a-zA-Z])", "<number>", printed)
    lines = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    lines = [_MEMBER.sub("<member>", line) for line in lines if line and re.search(case.only, line)]
    return "\n".join(sorted(lines) if case.sorted else lines)


def read_sections(path: Path) -> dict[str, str]:
    """The sections of a file of printed texts, by their headings."""
    sections: dict[str, str] = {}
    if path.exists():
        for part in path.read_text().split("\n### ")[1:]:
            heading, _, text = part.partition("\n")
            sections[heading] = text.rstrip("\n")
    return sections


def write_sections(path: Path, title: str, sections: Mapping[str, str]) -> None:
    """Write them back."""
    parts = [f"\n### {heading}\n{text}\n" for heading, text in sections.items()]
    path.write_text(title + "\n" + "".join(parts))
