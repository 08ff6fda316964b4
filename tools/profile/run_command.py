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

__all__ = ["run_on_records"]


def run_on_records(args: argparse.Namespace) -> int:
    """Read or follow the records in `args.url`, and print and write what is asked for."""
    for file in filter(None, (args.html, args.trace)):
        check_writable(file)
    if args.html is not None:
        from ringfeed.tools.charts.html_page import write_html  # now, for an error if matplotlib is not installed
        from ringfeed.tools.report.rank_plots import plot_rank_lateness, plot_rank_waits, plot_step_parts
    watch = getattr(args, "watch", None)
    records = follow(args.url, watch.check if watch else lambda: None) if args.follow else read_run(args.url)
    with guarded(args.url, "records of a run"):
        result = profile_records(records)
    if args.trace is not None:
        write_trace(records, args.trace)
    if args.html is not None:
        plots = [plot(records) for plot in (plot_rank_waits, plot_rank_lateness, plot_step_parts)]
        write_html(args.html, f"Run in {args.url}", result._repr_html_(), plots)
    print_text(json.dumps(asdict(result), indent=2) if args.json else result)
    return 0
