"""The rules of build options."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ringfeed.sharding import AppendOptions, BuildOptions, ConfigError


def options(**changes: Any) -> BuildOptions:
    return BuildOptions(**{"source": "a", "destination": "b", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_format": "csv"}, "format must be one of tfrecord, parquet, got 'csv'"),
        ({"compression": "zstd"}, "compression of tfrecord must be one of none, gzip, zlib, got 'zstd'"),
        ({"shards": 0}, "shards must be at least 1, got 0"),
        ({"shard_bytes": 0}, "shard size must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"shards": 1, "shard_bytes": 1}, "--shards or --shard-size, not both"),
        ({"splits": {"a": Fraction(1, 2)}}, "positive and add up to 1, got a=0.5"),
        ({"splits": {"a": Fraction(2), "b": Fraction(-1)}}, "positive and add up to 1"),
        ({"splits": {"../a": Fraction(1)}}, "ASCII letters, digits and _, got '../a'"),
        ({"splits": {}}, "add up to 1"),
        ({"balance": "size"}, "--balance must be one of records, bytes, got 'size'"),
        ({"split_column": "s", "group_by": "g"}, "--split-column or --group-by, not both: the column 's' names"),
        ({"split_column": "s", "splits": {"a": Fraction(1)}}, "--split or --split-column, not both"),
        ({"group_by": "g", "splits": {"all": 1}}, "several splits, and there is only one; add --split train=0.9"),
    ],
)
def test_an_invalid_option_names_its_rule_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**changes)


def generate() -> Iterator[dict[str, int]]:
    yield {"x": 1}


@pytest.mark.parametrize("source", [generate, lambda: [{"x": 1}], dict])
def test_a_function_as_source_is_refused_with_its_call(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"got the function .*; call it: source=.*\(\)"):
        options(source=source)


@pytest.mark.parametrize(
    "shares", [{"train": 0.8, "test": 0.2}, {"train": "4/5", "test": "0.2"}, {"train": Decimal("0.8"), "test": 0.2}]
)
def test_shares_are_exact_decimals(shares: Any) -> None:
    assert options(splits=shares).splits == {"train": Fraction(4, 5), "test": Fraction(1, 5)}
    assert AppendOptions(source="a", destination="b", splits=shares).splits == options(splits=shares).splits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": ["train"]}, "splits must be a mapping, got"),
        ({"splits": {"train": None}}, "splits.train must be a number such as 0.9, got None"),
        ({"splits": {"a": float("nan")}}, "splits.a must be a number such as 0.9, got nan"),
        ({"shards": "3"}, "shards must be an integer or None, got '3'"),
        ({"shards": 2.5}, "shards must be an integer or None, got 2.5"),
        ({"workers": True}, "workers must be an integer, got True"),
        ({"workers": None}, "workers must be an integer, got None"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
        ({"memory_bytes": "2GiB"}, "memory_bytes must be an integer or None, got '2GiB'"),
        ({"label": ["y"]}, "label must be text"),
        ({"on_bad_record": 3}, "on_bad_record must be text, got 3"),
        ({"engine": 3}, "engine must be text, got 3"),
        ({"shard_format": ["tfrecord"]}, "shard_format must be text"),
        ({"overwrite": "no"}, "overwrite must be True or False, got 'no'"),
        ({"source_kind": "cvs"}, "source_kind must be one of auto, ringfeed, .*, got 'cvs'"),
        ({"prepare": None}, "prepare must be PrepareOptions, got None"),
    ],
)
def test_options_of_other_types_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**changes)


@pytest.mark.parametrize("name", ["group_by", "split_by_time"])
def test_a_column_that_divides_records_makes_three_splits(name: str) -> None:
    assert options(**{name: "c"}).splits == {"train": Fraction(4, 5), "val": Fraction(1, 10), "test": Fraction(1, 10)}
    assert list(options(**{name: "c", "splits": {"a": "0.5", "b": "0.5"}}).splits) == ["a", "b"]


def test_integers_of_numpy_are_integers() -> None:
    assert type(options(shards=np.int32(3), seed=np.uint8(7)).seed) is int
