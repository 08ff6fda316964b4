"""`TabularTransform` and its planning: standardise columns, or look them up as categories, for a tabular model.

Plans use the manifest's statistics of one split only, so evaluation data never influence the features.
`tabular_ops.py` does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfeed.pipeline.select.selected_columns import check_fill
from ringfeed.sharding.common.validation import mapping, texts
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare.column_names import check_columns
from ringfeed.sharding.schema import Feature

from .apply import GraphTransform, add_features, require_feature
from .tabular_plan import CategoryColumn, NumericColumn, TabularPlan

__all__ = ["TabularTransform", "missing_codes", "plan_columns"]

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
            ConfigError: the element lacks a column of the plan, or already has a feature of an added name.
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
    fill: Mapping[str, Any] | None = None,
    leave_out: str = _LEAVE_OUT,
) -> TabularPlan:
    """Plan how each column becomes an input.

    Args:
        manifest: manifest of the dataset.
        columns: features that the model may see; default: all but the label.
        split: the split whose statistics to use.
        categorical: names of integer columns that hold codes, to be looked up.
        vocabularies: texts to look up, by column; default: those in the split.
        fill: the loader's value for missing values, by column: one that no record holds. Refused if it is the smallest
            or the largest value of a split; ignored if nothing is missing.
        leave_out: the advice in errors about a column, with a place for its name.

    Raises:
        ConfigError: a column cannot be an input of a tabular model, a name is not a column's, or `fill` is a value that
            records hold; the message says what to do.

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
    codes = check_fill(manifest.schema, fill)
    statistics, label = manifest.split(split).statistics, manifest.schema.label
    features = [f for f in manifest.schema.features if f.name != label] if columns is None else columns
    numeric, categories = [], []
    for feature in features:
        known = statistics[feature.name]
        if feature.dtype == "string" or feature.name in given:
            categories.append(_text_column(feature, given.get(feature.name, known.vocabulary), leave_out))
            continue
        missing_code = _fill_code(feature, manifest, codes.get(feature.name), leave_out)
        if feature.name in categorical:
            categories.append(_code_column(feature, known, missing_code))
        else:
            numeric.append(_numeric_column(feature, known, missing_code, leave_out))
            if missing_code is None:
                _check_missing(feature, manifest, leave_out)
    return TabularPlan(numeric=tuple(numeric), categories=tuple(categories))


def missing_codes(manifest: Manifest, used: Collection[str], *, leave_out: str = _LEAVE_OUT) -> dict[str, Any]:
    """The loader's `fill` for columns with missing values, except floats, which become NaN.

    Texts are filled with the empty text, integers with one that no record of any split holds.

    Args:
        manifest: manifest of the dataset.
        used: columns that the model sees; the fill of others does not matter.
        leave_out: see `plan_columns`.

    Raises:
        ConfigError: a column has missing values, and its dtype has no value left for them.
    """
    result: dict[str, Any] = {}
    for feature in manifest.schema.features:
        known = [split.statistics[feature.name] for split in manifest.splits.values()]
        if any(s.nulls for s in known) and feature.elements is not None and not feature.dtype.startswith("float"):
            result[feature.name] = _missing_code(feature, known, feature.name in used, leave_out)
    return result


def _missing_code(feature: Feature, known: Sequence[FeatureStatistics], is_used: bool, leave_out: str) -> Any:
    if feature.dtype == "string":
        return ""
    if not is_used:
        return {"binary": b"", "bool": False}.get(feature.dtype, 0)
    if "int" in feature.dtype:
        limits = np.iinfo(feature.dtype)
        smallest = min((int(s.min) for s in known if s.min is not None), default=0)
        largest = max((int(s.max) for s in known if s.max is not None), default=0)
        if smallest > limits.min:
            return smallest - 1
        if largest < limits.max:
            return largest + 1
    raise ConfigError(
        f"column {feature.name!r} ({feature.dtype}) has missing values, and no {feature.dtype} is left to stand for "
        f"them; {leave_out.format(feature.name)}, or store it as a wider integer"
    )


def _numeric_column(feature: Feature, known: FeatureStatistics, missing_code: Any, leave_out: str) -> NumericColumn:
    if not feature.numeric or feature.elements is None:
        raise _no_input(feature, leave_out)
    return NumericColumn(
        name=feature.name,
        mean=known.mean or 0.0,
        std=known.std or 1.0,  # makes a constant column 0
        has_missing=bool(known.nulls or known.nonfinite),
        elements=feature.elements,
        missing_code=missing_code,
    )


def _fill_code(feature: Feature, manifest: Manifest, code: Any, leave_out: str) -> Any:
    """The loader's fill for a column; None if nothing is missing, as equal values are data then."""
    known = [split.statistics[feature.name] for split in manifest.splits.values()]
    if code is None or not any(s.nulls for s in known):
        return None
    if any(code in (s.min, s.max) for s in known):
        raise ConfigError(
            f"fill of column {feature.name!r}: records hold {code!r}, which would count as missing; give a value that "
            f"none holds, or {leave_out.format(feature.name)}"
        )
    return code


def _check_missing(feature: Feature, manifest: Manifest, leave_out: str) -> None:
    """Refuse missing values without a fill of their own, as they could not be told from data."""
    for name, split in manifest.splits.items():
        if split.statistics[feature.name].nulls and not feature.dtype.startswith("float"):
            raise ConfigError(
                f"column {feature.name!r} ({feature.dtype}) has missing values in split {name!r}; say how the loader "
                f"fills them in: plan_columns(..., fill={{{feature.name!r}: ...}}), or {leave_out.format(feature.name)}"
            )


def _code_column(feature: Feature, known: FeatureStatistics, missing_code: Any) -> CategoryColumn:
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
    return CategoryColumn(name=feature.name, size=size, smallest=int(known.min), missing_code=missing_code)


def _text_column(feature: Feature, vocabulary: Sequence[str] | None, leave_out: str) -> CategoryColumn:
    if feature.dtype != "string":
        raise ConfigError(f"column {feature.name!r} ({feature.dtype}, shape {feature.shape}) holds no text to look up")
    if feature.shape != ():
        raise _no_input(feature, leave_out)
    if vocabulary is None:
        raise ConfigError(
            f"column {feature.name!r} holds too many different texts to embed; {leave_out.format(feature.name)}"
        )
    words = texts(f"the vocabulary of column {feature.name!r}", vocabulary, "texts")
    return CategoryColumn(name=feature.name, size=len(words) + 1, vocabulary=words)


def _no_input(feature: Feature, leave_out: str) -> ConfigError:
    return ConfigError(
        f"column {feature.name!r} ({feature.dtype}, shape {feature.shape}) cannot be an input of a tabular model; "
        f"{leave_out.format(feature.name)}"
    )
