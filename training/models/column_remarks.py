"""Remarks on columns that a model can take, but hardly learn from: identifiers, and dates as numbers of days."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.keys import as_yaml
from ringfeed.training.config.train_config import TrainConfig

from .preprocess import feature_columns

_DATES = re.compile(r"\d{4}([-/.])\d\d?\1\d\d?\b.*|\d\d?([-/.])\d\d?\2\d{4}\b.*")
_TABULAR = ("tabular", "wide_deep")
_FEWEST_RECORDS = 50  # with fewer, values that differ say little
_DISTINCT_SHARE = 0.5  # with more different texts than this share of the records, most occur once or twice


def column_remarks(manifest: Manifest, config: TrainConfig) -> list[str]:
    """Return one remark on all identifiers and dates that a tabular model would learn from, or none.

    An identifier is a text that differs in more than half of the records, or integers that each occur once.
    """
    data = config.data
    if config.model.name not in _TABULAR:
        return []
    found: dict[str, str] = {}
    for feature in feature_columns(manifest, data):
        known = [split.statistics[feature.name] for split in manifest.splits.values() if split.records]
        if remark := _remark(feature, manifest.split(data.train_split).statistics[feature.name], known):
            found[feature.name] = remark
    if not found:
        return []
    remarks = "; ".join(f"{name!r} holds {remark}" for name, remark in found.items())
    recipe = "; docs/cookbook.md has one for dates" if any("dates" in remark for remark in found.values()) else ""
    return [
        f"{remarks}: what a model learns from such columns rarely holds for new records; leave them out with "
        f"data.exclude={as_yaml([*found])}, or make other features of them (shard-dataset build --map{recipe})"
    ]


def _remark(feature: Feature, train: FeatureStatistics, known: Iterable[FeatureStatistics]) -> str:
    if feature.logical.startswith(("date", "timestamp")):
        return f"dates, as numbers ({feature.logical})"
    texts = train.vocabulary
    if texts is not None and train.count >= _FEWEST_RECORDS and len(texts) > _DISTINCT_SHARE * train.count:
        what = "dates, as texts, " if all(map(_DATES.fullmatch, texts)) else "texts "
        return f"{len(texts):,} different {what}in {train.count:,} records"
    if _are_consecutive(feature, list(known)):
        return "a number of its own in each record"
    return ""


def _are_consecutive(feature: Feature, known: list[FeatureStatistics]) -> bool:
    """Whether the integers span as many values as there are records, as numbers counted up do."""
    if "int" not in feature.dtype or feature.shape or any(one.min is None or one.max is None for one in known):
        return False
    count = sum(one.count for one in known)
    span = max(int(one.max or 0) for one in known) - min(int(one.min or 0) for one in known) + 1
    return count >= _FEWEST_RECORDS and span == count
