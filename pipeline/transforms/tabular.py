"""`TabularTransform` and its planning: standardise columns, or look them up as categories, for a tabular model.

Plans use the manifest's statistics of one split only, so evaluation data never influence the features.
`tabular_ops.py` does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.sharding.common.validation import mapping, texts
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare.column_names import check_columns
from ringfeed.sharding.schema import Feature

from .apply import GraphTransform, add_features, require_feature
from .tabular_plan import CategoryColumn, NumericColumn, TabularPlan

_MAX_CATEGORIES = 100_000  # of an integer code; with more, an embedding is hardly intended
_LEAVE_OUT = "leave {!r} out of columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularTransform(GraphTransform):
    """Adds the inputs of a tabular model to an element, for `Loader.epoch(transform=...)`.

    Adds `numeric`, float32 [batch, plan.numeric_width]: the standardised columns, then the indicators of missing
    values; and `categories`, int32 [batch, len(plan.categories)]. Leaves out an empty one.

    Attributes:
        plan: the plan made by `plan_columns`.

    >>> from ringfeed.pipeline import plan_columns
    >>> from ringfeed.sharding import open_dataset
    >>> transform = TabularTransform(plan=plan_columns(open_dataset("flights").manifest))
    >>> len(transform.plan.categories)
    1
    """

    plan: TabularPlan

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with its inputs.

        Raises:
            ConfigError: the element lacks a column of the plan or a mask, or already has a feature of an added name.
        """
        from .tabular_ops import tabular_inputs

        for name in [*(c.name for c in self.plan.numeric), *(c.name for c in self.plan.categories)]:
            require_feature(element, name)
        return add_features(element, tabular_inputs(element, self.plan))


def plan_columns(
    manifest: Manifest,
    columns: Sequence[Feature] | None = None,
    *,
    split: str = "train",
    categorical: Collection[str] = (),
    vocabularies: Mapping[str, Sequence[str]] | None = None,
    leave_out: str = _LEAVE_OUT,
) -> TabularPlan:
    """Plan how each column becomes an input.

    Args:
        manifest: manifest of the dataset.
        columns: features that the model may see; default: all but the label.
        split: the split whose statistics to use.
        categorical: names of integer columns that hold codes, to be looked up.
        vocabularies: texts to look up, by column; default: those in the split.
        leave_out: the advice in errors about a column, with a place for its name.

    Raises:
        ConfigError: a column cannot be an input of a tabular model, or a name is not a column's; the message says what
            to do.

    >>> from ringfeed.sharding import open_dataset
    >>> plan = plan_columns(open_dataset("flights").manifest, categorical=["hour"])
    >>> [column.name for column in plan.categories]
    ['hour', 'carrier']
    """
    if columns is not None and not all(isinstance(feature, Feature) for feature in columns):
        raise ConfigError(f"columns must be features, such as manifest.schema['name'], got {columns!r}")
    given = mapping("vocabularies", {} if vocabularies is None else vocabularies, "texts by column")
    check_columns("categorical", texts("categorical", categorical, "names"), manifest.schema.names)
    check_columns("vocabularies", given, manifest.schema.names)
    masked = set(masked_columns(manifest))
    statistics, label = manifest.split(split).statistics, manifest.schema.label
    features = [f for f in manifest.schema.features if f.name != label] if columns is None else columns
    numeric: list[NumericColumn] = []
    categories: list[CategoryColumn] = []
    refused: dict[str, _NoInput] = {}
    for feature in features:
        known = statistics[feature.name]
        try:
            if feature.dtype == "string" or feature.name in given:
                categories.append(_text_column(feature, given.get(feature.name, known.vocabulary)))
            elif feature.name in categorical:
                categories.append(_code_column(feature, known))
            else:
                numeric.append(_numeric_column(feature, known))
        except _NoInput as error:
            refused[feature.name] = error
    if refused:
        remedy = leave_out.format(", ".join(refused))
        remedy = remedy.replace("leave it out", "leave them out") if len(refused) > 1 else remedy
        raise ConfigError(f"{'; '.join(map(str, refused.values()))}; {remedy}")
    return TabularPlan(
        numeric=tuple(replace(column, masked=column.name in masked) for column in numeric),
        categories=tuple(replace(column, masked=column.name in masked) for column in categories),
    )


def masked_columns(manifest: Manifest) -> list[str]:
    """The columns whose missing values need a mask, as one is missing in a split and their dtype has no NaN.

    >>> from ringfeed.sharding import open_dataset
    >>> masked_columns(open_dataset("flights").manifest)
    []
    """
    return [
        feature.name
        for feature in manifest.schema.features
        if feature.elements is not None and not feature.dtype.startswith("float")
        if any(known.nulls for split in manifest.splits.values() if (known := split.statistics.get(feature.name)))
    ]


class _NoInput(Exception):
    """A column that cannot be an input of a tabular model, and why."""


def _numeric_column(feature: Feature, known: FeatureStatistics) -> NumericColumn:
    if not feature.numeric or feature.elements is None:
        raise _no_input(feature)
    return NumericColumn(
        name=feature.name,
        mean=known.mean or 0.0,
        std=known.std or 1.0,  # makes a constant column 0
        has_missing=bool(known.nulls or known.nonfinite),
        elements=feature.elements,
    )


def _code_column(feature: Feature, known: FeatureStatistics) -> CategoryColumn:
    is_integer = feature.dtype == "bool" or "int" in feature.dtype
    if not is_integer or feature.shape != () or known.min is None or known.max is None:
        raise ConfigError(
            f"categorical: column {feature.name!r} must hold one integer or text per record, "
            f"got {feature.dtype} of shape {feature.shape} with {known.count} values"
        )
    size = int(known.max) - int(known.min) + 2
    if size > _MAX_CATEGORIES:
        raise ConfigError(
            f"categorical: column {feature.name!r} spans {size - 1} codes ({int(known.min)} to {int(known.max)}), "
            f"and at most {_MAX_CATEGORIES} can be embedded"
        )
    return CategoryColumn(name=feature.name, size=size, smallest=int(known.min))


def _text_column(feature: Feature, vocabulary: Sequence[str] | None) -> CategoryColumn:
    if feature.dtype != "string":
        raise ConfigError(f"column {feature.name!r} ({feature.dtype}, shape {feature.shape}) holds no text to look up")
    if feature.shape != ():
        raise _no_input(feature)
    if vocabulary is None:
        raise _NoInput(f"column {feature.name!r} holds too many different texts to embed")
    words = texts(f"the vocabulary of column {feature.name!r}", vocabulary, "texts")
    return CategoryColumn(name=feature.name, size=len(words) + 1, vocabulary=words)


def _no_input(feature: Feature) -> _NoInput:
    return _NoInput(
        f"column {feature.name!r} ({feature.dtype}, shape {feature.shape}) cannot be an input of a tabular model"
    )
