"""A writer that takes records one after the other, and builds a dataset of them when it is closed."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ringfeed.sharding.common.argument_names import options_of
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.dataset_draft import check_destination
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.sources.records.in_memory import RecordSpool
from ringfeed.sharding.storage.storage import Storage

from .build import build
from .options import BuildOptions


class Writer:
    """Writes records as a dataset, with all guarantees of `build`: balanced, shuffled, and committed as a whole.

    The records wait in a temporary file until the body of `with` ends: where they go depends on how many there are of
    each class. Nothing is written if it raises.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Writer(f"{folder}/shards", label="label") as writer:
    ...     for i in range(100):
    ...         writer.write({"x": i / 2, "label": "ab"[i % 2]})
    >>> writer.manifest.records
    100
    """

    def __init__(self, destination: str, *, label: str | None = None, report: Report = ignore, **options: Any) -> None:
        """Check the options and the destination.

        Args:
            destination: URL or path of the folder to write.
            label: label column, or None.
            report: called after every task of the build.
            options: more options, by the names of their flags; see `build`.

        Raises:
            ConfigError: an option violates its rule.
            DestinationError: something is in the way at the destination.
        """
        given = {"source": (), "destination": destination, "label": label, **options}
        self._options = options_of(BuildOptions, None, given)
        self._report = report
        check_destination(Storage(self._options.destination), "replace" if self._options.overwrite else "new")
        spill = None if self._options.spill is None else Storage(self._options.spill).local_path
        self._records = RecordSpool(str(spill) if spill is not None and spill.is_dir() else None)
        self._closed = False
        self.manifest: Manifest | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Take a record: a dict of values as from a Python source. Its values are copied.

        Raises:
            SourceError: the record is no dict, or a value fits no column.
        """
        if self._closed:
            raise ConfigError("this Writer is closed; make a new one, and append its dataset if there is one already")
        self._records.add(record)

    def close(self) -> None:
        """Build the dataset of all records; the body of `with` does it at its end."""
        if self._closed:
            return
        self._closed = True
        try:
            self.manifest = build(self._options, source=self._records, report=self._report)
        finally:
            self._records.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._closed = True
            self._records.close()
