"""`ringfeed train`: hands over to `ringfeed.training.train`, which imports TensorFlow only when it trains."""

from __future__ import annotations

import argparse
from typing import Any

from ..training.train import add_arguments
from ..training.train import run as _run

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to an `argparse` sub-parsers object; its `run` is the function to call."""
    parser = subparsers.add_parser("train", help="train a model on a sharded dataset, alone or under horovodrun")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    return _run(args)
