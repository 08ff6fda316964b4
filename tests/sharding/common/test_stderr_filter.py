"""Matching lines are dropped from standard error, and no others."""

import subprocess
import sys

PROGRAM = r"""
import os, re, sys
from ringfeed.sharding.common.stderr_filter import drop_stderr_lines

with drop_stderr_lines(re.compile(rb"\[.*\] noise")):
    print("went on", flush=True)
    os.write(2, b"[10:12] noise from C++\n\xc3\xa9 from C++\n")
    print("about [10:12] noise", file=sys.stderr)
    os.write(2, b"[10:13] noise, and no end of its line")
    raise SystemExit("the body's")
"""


def run(*command: str) -> tuple[int, str, str]:
    done = subprocess.run([*command, sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_only_matching_lines_are_dropped_even_if_the_body_fails() -> None:
    assert run() == (1, "went on\n", "é from C++\nabout [10:12] noise\nthe body's\n")


def test_a_program_without_standard_error_continues() -> None:
    assert run("sh", "-c", 'exec "$@" 2>&-', "sh")[1] == "went on\n"
