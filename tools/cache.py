"""`ringfeed cache`: list or clear a loader's cache; entries in use are kept."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ringfeed.pipeline.fetch.disk_cache import CacheEntry, CacheFolder, dataset_folder, is_cache
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import listed, one_line
from ringfeed.sharding.storage.location import Location
from ringfeed.sharding.storage.storage import Storage

from .console import align, human_bytes, human_seconds, print_event, print_stderr, print_text

_DESCRIPTION = """\
List the entries of a cache that loaders keep on this machine (Loader(..., cache=PATH)), or clear it. Entries that a
process is using are never removed.
"""
_EPILOG = """\
examples:
  ringfeed cache /mnt/nvme/cache
  ringfeed cache /mnt/nvme/cache --clear --older-than 7d
  ringfeed cache /mnt/nvme/cache --clear --dataset s3://bucket/flights --json
"""
_SHOWN = 40
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed cache`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("path", metavar="PATH", help="folder of the cache")
    parser.add_argument("--clear", action="store_true", help="remove entries, except those in use")
    parser.add_argument(
        "--older-than", metavar="AGE", help="only entries unused for at least this long: 45s, 30m, 12h, 7d"
    )
    parser.add_argument("--dataset", metavar="URL", help="only entries of this dataset")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed cache`."""
    age = None if args.older_than is None else parse_age(args.older_than)
    folder = _open(args.path)
    entries = folder.entries()
    dataset = None if args.dataset is None else Storage(args.dataset).locate()
    chosen = _choose(entries, age, dataset)
    if dataset is not None and not _choose(entries, None, dataset):
        others = sorted({one_line(entry.dataset) for entry in entries})
        held = f"it holds {listed(others)}" if others else "it is empty"
        note = f"the cache holds nothing of {one_line(dataset)}; {held}"
        if args.json:
            print_event("note", message=note)
        else:
            print_stderr(f"ringfeed: {note}")
    in_use = {entry.file for entry in chosen if entry.in_use()}
    if args.clear:
        _report_cleared(args, chosen, folder.remove(chosen))
    elif args.json:
        print(json.dumps(_document(folder, chosen, in_use), indent=2))
    else:
        print_text("\n".join(_lines(folder, chosen, in_use)))
    return 0


def _open(name: str) -> CacheFolder:
    path = Location(name).local_path
    try:
        if path is None or not is_cache(path):
            raise ConfigError(f"{name} is not a cache; a loader creates one on a local disk: Loader(..., cache=PATH)")
        return CacheFolder(path)
    except OSError as error:
        raise ConfigError(f"cannot open the cache {name}: {error.strerror or error}; ask its owner, or root") from error


def parse_age(text: str) -> float:
    """Parse an age, a number with s, m, h or d, into seconds.

    Raises:
        ConfigError: the text is not an age.

    >>> parse_age("90s"), parse_age("1.5h"), parse_age("7d")
    (90.0, 5400.0, 604800.0)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if match is None:
        raise ConfigError(f"an age is a number with s, m, h or d, such as 12h or 7d, got {text!r}")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _choose(entries: Sequence[CacheEntry], age: float | None, dataset: str | None) -> list[CacheEntry]:
    """Return the entries of a dataset (None: of all) that were unused for `age` seconds (None: all)."""
    name = None if dataset is None else dataset_folder(dataset)
    newest = math.inf if age is None else time.time() - age  # a clock that was set back leaves times in the future
    return [entry for entry in entries if entry.used <= newest and name in (None, entry.file.parent.name)]


def _report_cleared(args: argparse.Namespace, chosen: Sequence[CacheEntry], removed: Sequence[CacheEntry]) -> None:
    removed_files = {entry.file for entry in removed}
    kept = [entry for entry in chosen if entry.file not in removed_files and entry.file.exists()]
    if args.json:
        document = {
            "removed": len(removed),
            "removed_bytes": sum(entry.bytes for entry in removed),
            "kept_in_use": [_entry_json(entry, in_use=True) for entry in kept],
        }
        print(json.dumps(document, indent=2))
        return
    print_text(f"removed {len(removed):,} entries, {human_bytes(sum(entry.bytes for entry in removed))}")
    if kept:
        print_text(f"kept {len(kept):,} in use, {human_bytes(sum(entry.bytes for entry in kept))}")


def _document(folder: CacheFolder, entries: Sequence[CacheEntry], in_use: set[Path]) -> dict[str, Any]:
    return {
        "path": str(folder.path),
        "limit_bytes": folder.limit_bytes,
        "bytes": sum(entry.bytes for entry in entries),
        "entries": [_entry_json(entry, in_use=entry.file in in_use) for entry in entries],
    }


def _entry_json(entry: CacheEntry, *, in_use: bool) -> dict[str, Any]:
    return {
        "dataset": entry.dataset,
        "path": entry.path,
        "bytes": entry.bytes,
        "last_used": datetime.fromtimestamp(entry.used).astimezone().isoformat(timespec="seconds"),
        "in_use": in_use,
        "filling": entry.filling,
    }


def _lines(folder: CacheFolder, entries: Sequence[CacheEntry], in_use: set[Path]) -> list[str]:
    total = sum(entry.bytes for entry in entries)
    used = sum(entry.bytes for entry in entries if entry.file in in_use)
    lines = [
        f"{folder.path}: {len(entries):,} entries, {human_bytes(total)}, {human_bytes(used)} of it in use; "
        f"limit {human_bytes(folder.limit_bytes)}"
    ]
    now = time.time()
    rows = [
        [
            one_line(entry.dataset),
            one_line(entry.path),
            human_bytes(entry.bytes),
            f"{human_seconds(max(now - entry.used, 0))} ago",
            "being filled" if entry.filling else "in use" if entry.file in in_use else "",
        ]
        for entry in reversed(entries[-_SHOWN:])
    ]
    if rows:
        lines += ["", *align(["dataset", "file", "size", "last used", ""], rows, left=2)]
    if len(entries) > _SHOWN:
        lines.append(f"... and {len(entries) - _SHOWN:,} used less recently; --json lists all")
    return lines
