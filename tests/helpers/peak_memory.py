"""A program for a test: reads splits one after the other, and prints the memory it has taken at most after each."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ringfeed.pipeline import Loader

STREAMS, PREFETCH_BYTES = 2, 1 << 20
AHEAD_BYTES = 3 << 20  # two shards of the test, one for each stream


def peak_kib() -> int:
    """The most that was resident, mapped files included. (`getrusage` would tell of the process that forked this.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main(url: str, splits: Sequence[str]) -> None:
    """Print the KiB before any split and after each."""
    peaks = [peak_kib()]
    for split in splits:
        loader = Loader(url, split=split, batch_size=64, streams=STREAMS, prefetch_bytes=AHEAD_BYTES)
        for _ in loader.numpy_epoch(0, prefetch_bytes=PREFETCH_BYTES):
            pass
        peaks.append(peak_kib())
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
