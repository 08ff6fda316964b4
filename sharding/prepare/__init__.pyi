# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .carried_column import open_with_carried_column
from .casts import Cast, SetTypes
from .comma_lists import split_columns, split_texts
from .image_source import ImageSource
from .image_transform import Encoding, ImageOptions, Size, parse_encoding, parse_size
from .null_steps import DropNulls, FillNulls, MaskNulls
from .open import open_prepared, prepare
from .options import CsvDialect, PrepareOptions
from .prepared_source import PreparedSource
from .schema_file import read_features
from .steps import Drop, Filter, Rename, Select, Step
from .text_form import parse_step, restore_options
from .user_map import MapBatches, check_trusted

__all__ = [
    "Cast",
    "CsvDialect",
    "Drop",
    "DropNulls",
    "Encoding",
    "FillNulls",
    "Filter",
    "ImageOptions",
    "ImageSource",
    "MapBatches",
    "MaskNulls",
    "PrepareOptions",
    "PreparedSource",
    "Rename",
    "Select",
    "SetTypes",
    "Size",
    "Step",
    "check_trusted",
    "open_prepared",
    "open_with_carried_column",
    "parse_encoding",
    "parse_size",
    "parse_step",
    "prepare",
    "read_features",
    "restore_options",
    "split_columns",
    "split_texts",
]
