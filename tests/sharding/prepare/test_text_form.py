"""Recorded preparation options read back as the same values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError, Feature
from ringfeed.sharding.prepare import (
    Cast,
    CsvDialect,
    Drop,
    DropNulls,
    Encoding,
    FillNulls,
    Filter,
    ImageOptions,
    MapBatches,
    MaskNulls,
    PrepareOptions,
    Rename,
    Select,
    Size,
    Step,
    restore_options,
)

# What a command line can say: names are stripped there, and end at the first "=".
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip).filter(bool)
_NAMES = _TEXT.filter(lambda text: "=" not in text)
_PAIRS = st.lists(st.tuples(_NAMES, _TEXT), min_size=1, max_size=3).map(tuple)
_COLUMNS = st.lists(_TEXT, min_size=1, max_size=3).map(tuple)
_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Select, _COLUMNS),
    st.builds(Drop, st.lists(_TEXT | st.just(""), min_size=1, max_size=3).map(tuple)),
    st.builds(DropNulls, st.just(()) | _COLUMNS),
    st.builds(MaskNulls, _COLUMNS),
    st.builds(Rename, _PAIRS),
    st.builds(Cast, _PAIRS),
    st.builds(FillNulls, _PAIRS),
    st.builds(Filter, st.text()),
    st.builds(MapBatches, st.just("module:function"), st.just("/here")),
)
_FEATURES = st.builds(
    Feature,
    name=_TEXT,
    dtype=st.sampled_from(["int8", "float32", "binary"]),
    shape=st.sampled_from([(), (2, 3), (None,)]),
    encoding=st.sampled_from(["", "image"]),
)
_IMAGES = st.builds(
    ImageOptions,
    size=st.sampled_from([Size(width=256), Size(width=32, height=16)]),
    encoding=st.sampled_from([None, Encoding(form="png"), Encoding(form="jpeg", quality=85)]),
)


@given(
    features=st.lists(_FEATURES, max_size=2, unique_by=lambda feature: feature.name),
    steps=st.lists(_STEPS, max_size=3).map(tuple),
    dedup=st.none() | st.just(()) | _COLUMNS.filter(lambda columns: columns != ("*",)),
    images=st.none() | _IMAGES,
)
def test_options_survive_recording(features: list[Feature], steps: tuple[Step, ...], dedup: Any, images: Any) -> None:
    options = PrepareOptions(
        csv=CsvDialect(header="first"), features={f.name: f for f in features}, steps=steps, dedup=dedup, images=images
    )
    recorded = json.loads(json.dumps(options.recorded()))
    assert restore_options(recorded, "/here") == options


@pytest.mark.parametrize(
    ("recorded", "told"),
    [({"augment": []}, "this version does not know: augment"), ({"steps": ["--shuffle x"]}, "no step '--shuffle'")],
)
def test_options_of_a_newer_version_are_refused(recorded: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        restore_options(recorded, "")
