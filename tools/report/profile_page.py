"""A profile as one HTML page that needs no other file; needs matplotlib.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

from contextlib import suppress

from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.html_page import write_html

from . import plots
from .profile_result import Profile

__all__ = ["write_page"]


def write_page(result: Profile, path: str) -> None:
    """Write a profile as a page, at a path or URL: its verdict, its tables, and a plot of each thing that was measured.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [plots.plot_waterfall(result)]
    if result.training is not None:
        drawn.append(plots.plot_training(result))
    with suppress(ConfigError):  # no option, or one whose gain is not known
        drawn.append(plots.plot_tried(result))
    drawn += [plots.plot_epoch(result), plots.plot_stages(result)]
    with suppress(ConfigError):  # too short an epoch
        drawn.append(plots.plot_queues(result))
    if result.parts.store is not None:
        drawn += [plots.plot_store(result), plots.plot_latencies(result)]
    write_html(path, f"Profile of {result.url}", result.html(), drawn)
