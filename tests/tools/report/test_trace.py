"""The trace of a run, against the rules of the trace event format."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ringfeed.tools.measure.run_records import read_run
from ringfeed.tools.report.trace import write_trace

Write = Callable[..., str]
STEPS = 30


def test_a_trace_nests_and_has_a_process_for_each_rank(write_run: Write, tmp_path: Path) -> None:
    gradients = np.full((2, STEPS), 0.02)
    gradients[1] = 0.03
    stages = {"fetch": {"busy_seconds": 2.5}, "open": {"busy_seconds": 0.5}}
    folder = write_run(np.full((2, STEPS), 0.005), gradients, hosts=["a", "b"], clocks=[0.0, 3600.0], stages=stages)
    write_trace(read_run(folder), str(tmp_path / "trace.json"))
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names[0, 0, "process_name"] == "rank 0 (a)"
    assert names[1, 0, "process_name"] == "rank 1 (b)"
    tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in {"X", "M", "C"}
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"], "thread_name") in names
            tracks[event["pid"], event["tid"]].append(event)
    counters = [(e["pid"], e["name"], e["args"]["threads"], e["ts"]) for e in events if e["ph"] == "C"]
    assert {each[:3] for each in counters} == {
        (rank, name, threads) for rank in (0, 1) for name, busy in (("fetch", 2.5), ("open", 0.5))
        for name, threads in ((f"loader {name}", busy), (f"loader {name}", 0))
    }  # fmt: skip
    assert min(ts for *_, ts in counters) == pytest.approx(0.0, abs=1e4)  # beside the steps, whatever the rank's clock
    for slices in tracks.values():  # those of one thread must nest; these follow one another
        ordered = sorted(slices, key=lambda each: each["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in itertools.pairwise(ordered))
    steps = [e for e in tracks[1, 1] if e["name"] == "step 7"]
    parts = [e for e in tracks[1, 2] if e["args"]["step"] == 7]
    assert [e["name"] for e in parts] == ["wait for input", "forward and backward", "all-reduce", "update"]
    assert sum(e["dur"] for e in parts) == pytest.approx(steps[0]["dur"], abs=0.01)
    assert parts[1]["dur"] == pytest.approx(30_000, rel=1e-3)


def test_the_clocks_of_hosts_are_aligned_by_the_collective(write_run: Write, tmp_path: Path) -> None:
    gradients = np.full((2, STEPS), 0.02)
    folder = write_run(np.zeros((2, STEPS)), gradients, clocks=[0.0, -3600.0])
    write_trace(read_run(folder), str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ends = {
        (event["pid"], event["args"]["step"]): event["ts"] + event["dur"]
        for event in events
        if event["name"] == "all-reduce"
    }
    assert len(ends) == 2 * (STEPS - 1)
    assert all(ends[0, step] == pytest.approx(ends[1, step], abs=1) for step in range(1, STEPS))
    evaluations = [event["ts"] for event in events if event["name"] == "evaluation"]
    assert evaluations[0] == pytest.approx(evaluations[1], abs=1)
