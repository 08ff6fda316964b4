"""Print the longest test files of a run as a table of Markdown: ``python -m tests.helpers.durations build/junit.xml``.

With the report of an earlier run as a second argument, the table has a column for it.
"""

import re
import sys
from collections import Counter
from xml.etree import ElementTree


def seconds_by_file(report: str) -> Counter[str]:
    """Sum the seconds of the tests of each file in a JUnit report of pytest."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if found := re.match(r"(?:\w+\.)*?test_\w+", case.get("classname", "")):  # a class may follow
            seconds[found[0].replace(".", "/") + ".py"] += float(case.get("time", 0))
    return seconds


def longest_files(report: str, earlier: str | None = None, *, count: int = 20) -> str:
    """The table: each file's seconds, and those of all."""
    now, before = seconds_by_file(report), seconds_by_file(earlier) if earlier else None
    rows = [["file", "seconds"], ["---", "---:"]]
    rows += [[f"`{name}`", f"{seconds:.0f}"] for name, seconds in now.most_common(count)]
    rows += [["all files", f"{now.total():.0f}"]]
    if before is not None:
        rows[0].insert(1, "before")
        rows[1].insert(1, "---:")
        for row in rows[2:-1]:
            row.insert(1, f"{before[row[0].strip('`')]:.0f}")
        rows[-1].insert(1, f"{before.total():.0f}")
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(longest_files(*sys.argv[1:]), end="")
