"""`ringfeed profile FOLDER`: a run of `ringfeed train`, finished or under way, from the records of its ranks."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ringfeed.sharding.storage.untrusted_files import guarded
from ringfeed.tools.console import print_text
from ringfeed.tools.measure.run_records import read_run
from ringfeed.tools.report.run_result import profile_records
from ringfeed.tools.report.trace import write_trace
from ringfeed.training.run.state.outputs import check_writable

from .watch import follow


def run_on_records(args: argparse.Namespace) -> int:
    """Read or follow the records in `args.url`, and print and write what is asked for."""
    for file in filter(None, (args.html, args.trace)):
        check_writable(file)
    if args.html is not None:
        from ringfeed.tools.report.pages import write_run_page  # now, for an error if matplotlib is not installed
    watch = getattr(args, "watch", None)
    records = follow(args.url, watch.check if watch else lambda: None) if args.follow else read_run(args.url)
    with guarded(args.url, "records of a run"):
        result = profile_records(records)
    if args.trace is not None:
        write_trace(records, args.trace)
    if args.html is not None:
        write_run_page(result, records, args.html)
    print_text(json.dumps(asdict(result), indent=2) if args.json else result)
    return 0
