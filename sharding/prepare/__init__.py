"""What is done to records before they are dealt to shards: steps as values, and sources around a source."""

from .carrying import open_carrying
from .casts import Cast, SetTypes
from .features_file import read_features
from .image_source import ImageSource
from .images import Encoding, ImageOptions, Size, parse_encoding, parse_size
from .items import split_columns
from .mapping import MapBatches
from .opening import open_prepared, prepare
from .options import PrepareOptions
from .source import PreparedSource
from .specs import parse_step, restore_options
from .steps import Drop, DropNulls, FillNulls, Filter, Rename, Select, Step

__all__ = [
    "Cast",
    "Drop",
    "DropNulls",
    "Encoding",
    "FillNulls",
    "Filter",
    "ImageOptions",
    "ImageSource",
    "MapBatches",
    "PrepareOptions",
    "PreparedSource",
    "Rename",
    "Select",
    "SetTypes",
    "Size",
    "Step",
    "open_carrying",
    "open_prepared",
    "parse_encoding",
    "parse_size",
    "parse_step",
    "prepare",
    "read_features",
    "restore_options",
    "split_columns",
]
