"""The options of a preparation, and how the manifest records them.

Tested in tests/sharding/prepare/test_steps.py and tests/sharding/prepare/test_text_form.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.text.csv_dialect import CsvDialect as CsvDialect

from .comma_lists import ALL
from .image_transform import ImageOptions
from .rare_classes import RareClasses
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How to prepare the records of a source; by default, they are left unchanged.

    Attributes:
        features: types and shapes given by the user, by column; applied first.
        null_values: texts of CSV that mean a missing value, in columns of every type.
        csv: how CSV files are written.
        images_from: folders, besides its own, that a list of images may name files in; not recorded.
        steps: steps on columns and rows, in order.
        float32: whether floats of 64 bits, except for the label, are rounded to 32 bits, after the steps.
        dedup: columns to compare; of records with equal values, the first is kept. Empty: all columns. None: duplicates
            are kept. Applied after the steps.
        rare_classes: classes to drop or to merge, after the steps.
        images: transformation of images; applied last.

    >>> from ringfeed.sharding.prepare import Select
    >>> PrepareOptions(steps=(Select(("hours", "arrival")),), float32=True).float32
    True
    """

    features: Mapping[str, Feature] = field(default_factory=dict)
    null_values: tuple[str, ...] = ()
    csv: CsvDialect = field(default_factory=CsvDialect)
    images_from: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    float32: bool = False
    dedup: tuple[str, ...] | None = None
    rare_classes: tuple[RareClasses, ...] = ()
    images: ImageOptions | None = None

    def recorded(self) -> dict[str, Any]:
        """The options as in `dataset.json`, without keys for defaults; `text_form.restore_options` is the inverse."""
        values = {
            "schema": [feature.to_json() for feature in self.features.values()],
            "null_values": list(self.null_values),
            "csv": self.csv.recorded(),
            "steps": [step.spec for step in self.steps],
            "float32": self.float32,
            "dedup": None if self.dedup is None else list(self.dedup) or [ALL],
            "rare_classes": [rare.to_json() for rare in self.rare_classes],
            "images": "" if self.images is None else self.images.spec,
        }
        return {name: value for name, value in values.items() if value}

    def described(self, source: str) -> str:
        """The name of a source and of the steps applied to it, for errors.

        >>> PrepareOptions(dedup=()).described("a.csv")
        'a.csv (after --dedup)'
        """
        flags = [step.spec for step in self.steps] + ["--float32"] * self.float32
        flags += [] if self.dedup is None else [f"--dedup {','.join(self.dedup)}".strip()]
        return f"{source} (after {' '.join(flags)})" if flags else source
