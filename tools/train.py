"""`ringfeed train`: hands over to `ringfeed.training.train`, which imports TensorFlow only when it trains."""

from __future__ import annotations

import argparse

from ..training.train import add_arguments, run

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ringfeed train`."""
    add_arguments(subparsers.add_parser("train", help="train a model on a sharded dataset, alone or under horovodrun"))
