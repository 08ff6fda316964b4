"""The history of a run as JSON Lines or CSV, on any storage; on a disk each entry is written when it comes.

A resumed run writes its files anew from the history in its checkpoint, so that no step is in them twice.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ringfeed.sharding.destination.held_file import write_held_file
from ringfeed.sharding.storage.storage import Storage

from .events import RunBegan, RunEnded
from .tracker import EntryTracker, finite, scalars


class _TextFile:
    """A text file that grows: on a disk with each line; in a store, which cannot append, whenever it is told to."""

    def __init__(self, url: str) -> None:
        self._storage, self._name = Storage(os.path.dirname(url) or "."), os.path.basename(url)
        self._file: TextIO = io.StringIO()
        if (folder := self._storage.local_path) is not None:
            with self._storage.errors("write", self._name):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = (folder / self._name).open("w", buffering=1, encoding="utf-8", newline="")

    def write(self, text: str) -> int:
        return self._file.write(text)

    def store(self) -> None:
        if isinstance(self._file, io.StringIO):
            write_held_file(self._storage, self._name, self._file.getvalue().encode())

    def close(self) -> None:
        """Write the lines that are not yet in the store, and close the file."""
        self.store()
        self._file.close()


class _Files(EntryTracker):
    """A tracker that writes `files`."""

    files: Sequence[_TextFile] = ()

    def flush(self) -> None:
        for file in self.files:
            file.store()

    def close(self, event: RunEnded) -> None:
        for file in self.files:
            file.close()


class JSONLines(_Files):
    """One object a line: `event` is `steps` or `evaluation`, the other keys are as in the metrics' history.

    They are sorted by name after step and epoch: a checkpoint does not keep the order of an entry.
    """

    name = "jsonl"

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, event: RunBegan) -> None:
        self.files = [_TextFile(self._url)]

    def write(self, kind: str, entry: Mapping[str, Any]) -> None:
        first = {"event": kind, "step": entry["step"], "epoch": entry["epoch"]}
        in_order = json.loads(json.dumps(finite(entry), sort_keys=True))
        self.files[0].write(json.dumps(first | in_order) + "\n")


class _Table(_TextFile):
    """A CSV file whose columns are the numbers of its first entry, those that are undefined there included.

    Columns are sorted by name after step and epoch: a checkpoint does not keep the order of an entry.
    """

    _writer: csv.DictWriter[str] | None = None

    def add(self, entry: Mapping[str, Any]) -> None:
        first = {"step": entry["step"], "epoch": entry["epoch"]}
        row = first | scalars(entry)
        if self._writer is None:
            undefined = {name for name, value in entry.items() if value is None}
            columns = [*first, *sorted((row.keys() | undefined) - first.keys())]
            self._writer = csv.DictWriter(self, columns, extrasaction="ignore", lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow(row)


class CSVFiles(_Files):
    """`steps.csv` and `evaluations.csv` in a folder, with the numbers of the history; a group's as `recall/CLASS`."""

    name = "csv"

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def open(self, event: RunBegan) -> None:
        names = {"steps": "steps.csv", "evaluation": "evaluations.csv"}
        self._tables = {kind: _Table(f"{self._url}/{name}") for kind, name in names.items()}
        self.files = list(self._tables.values())

    def write(self, kind: str, entry: Mapping[str, Any]) -> None:
        self._tables[kind].add(entry)
