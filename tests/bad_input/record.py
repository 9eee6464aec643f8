"""`python -m tests.bad_input.record BROKER_PORT NAMESERVER_PORT [CODE ...] >FILE`: bad input and answers.

`answers_5_3_3.tsv` was recorded from Apache RocketMQ 5.3.3, `benchmarks/peers/rocketmq up single`. Columns: the case,
the code (`-`: no answer), the first 160 characters of the remark.
"""

import sys

from tests.bad_input.cases import Nodes, cases

_SHOWN = 160


def main() -> None:
    nodes = Nodes(*map(int, sys.argv[1:3]))
    nodes.prepare()
    codes = set(map(int, sys.argv[3:]))
    for case in cases():
        if codes and case.request.code not in codes:
            continue
        answer = nodes.ask(case.request.server, case.request.code, case.fields, case.body)
        said = "-\t" if answer is None else f"{answer.code}\t{' '.join(answer.remark[:_SHOWN].split())}"
        print(f"{case.name}\t{said}", flush=True)


if __name__ == "__main__":
    main()
