"""Random access to single records by number: for looking at data and for evaluation, too slow for training.

Fetches the whole shard of a record, as streams do, and keeps the last few.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.fork_safe_locks import renew_lock_in_forks
from ringfeed.sharding.dataset.consistency import corruption_errors
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.formats.example_decode import decode_example
from ringfeed.sharding.formats.example_encode import RecordLayout
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .decode.class_labels import ClassLabels
from .decode.columns import Columns, fill_value, take_columns
from .decode.shard_opener import OpenShard
from .decode.tfrecord_frames import open_features
from .select.sample_columns import CLASS_ID, EXAMPLES, FRAMES, mask_name
from .streams.shard_fetcher import ShardFetcher

_KEPT_SHARDS = 4


class RandomAccess:
    """The records of a split, numbered in the order of the dataset. Thread-safe.

    Args:
        shards: the shards of the split.
        schema: the features to deliver.
        layout: layout of the records of TFRecord shards, if they share one.
        fill: see `Loader`.
        labels: labels that are not read from shards, or None.
        masks: features whose missing values are marked.
    """

    def __init__(
        self,
        shards: Sequence[ShardInfo],
        schema: Schema,
        layout: RecordLayout | None,
        fill: Mapping[str, Any],
        labels: ClassLabels | None = None,
        masks: Sequence[str] = (),
    ) -> None:
        self._stops = np.cumsum([shard.records for shard in shards])
        self._schema = schema
        self._layout = layout
        self._fill = fill
        self._labels = labels
        self._masks = [mask_name(name) for name in masks]
        self._kept: OrderedDict[int, OpenShard] = OrderedDict()
        self._lock = threading.RLock()
        renew_lock_in_forks(self)

    def record(self, index: int, make_fetcher: Callable[[], ShardFetcher]) -> tuple[dict[str, Any], int]:
        """One record, and its class.

        Args:
            index: number of the record.
            make_fetcher: makes a fetcher for the split's shards, if the record's shard is not in memory.

        Raises:
            IndexError: there is no such record.
        """
        if not 0 <= index < self._stops[-1]:
            raise IndexError(f"the split has records [0, {self._stops[-1]}), got {index}")
        number = int(np.searchsorted(self._stops, index, side="right"))
        shard = self._shard(number, make_fetcher)
        row = index - int(self._stops[number - 1] if number else 0)
        class_id = shard.class_ids[[row]]
        with corruption_errors(f"record {index} of the split"):
            return self._decoded(shard, row, class_id), int(class_id[0])

    def _decoded(self, shard: OpenShard, row: int, class_id: npt.NDArray[np.int32]) -> dict[str, Any]:
        columns: Columns = take_columns(shard.columns, np.array([row]))
        if self._labels is not None:
            columns = self._labels.add_to({**columns, CLASS_ID: class_id})
        if EXAMPLES in columns:
            frame = columns[EXAMPLES][0].as_py()
            record = decode_example(frame[HEADER_BYTES : len(frame) - FOOTER_BYTES], self._schema)
        else:
            if FRAMES in columns and self._layout is not None:
                columns = open_features(columns, self._schema, self._layout)
            record = {
                name: values[0] if isinstance(values, np.ndarray) else values[0].as_py()
                for name, values in columns.items()
            }
        restored = {f.name: self._restored(record[f.name], f) for f in self._schema.features}
        return restored | {name: record[name] for name in self._masks}

    def _shard(self, number: int, make_fetcher: Callable[[], ShardFetcher]) -> OpenShard:
        with self._lock:
            shard = self._kept.get(number)
            if shard is None:
                fetcher = make_fetcher()
                try:
                    shard = self._kept[number] = fetcher.wait(fetcher.request(fetcher.whole(number)))
                finally:
                    fetcher.close()
            self._kept.move_to_end(number)
            while len(self._kept) > _KEPT_SHARDS:
                self._kept.popitem(last=False)
            return shard

    def _restored(self, value: Any, feature: Feature) -> Any:
        """The value in the feature's dtype and shape, or the fill for a missing one."""
        if value is None:
            value = [fill_value(feature, self._fill)] * (feature.elements or 0)
        if not feature.numeric and len(feature.shape) == 0:
            return value if isinstance(value, str | bytes) else value[0]
        values = np.array(value, feature.dtype if feature.numeric else object)
        if feature.fixed_shape is not None:
            values = values.reshape(feature.fixed_shape)
        return values[()] if feature.numeric else values.tolist()
