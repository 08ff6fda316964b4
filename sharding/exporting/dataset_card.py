"""The README.md of an exported folder: a Hugging Face dataset card, where `datasets.load_dataset` finds the splits.

Tested in tests/sharding/exporting/test_huggingface.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.messages import one_line
from ringfeed.sharding.schema import class_names

CARD_NAME = "README.md"
_CLASSES_SHOWN = 1000


def dataset_card(manifest: Manifest, splits: Sequence[str], suffix: str, digest: str) -> bytes:
    """Return the card: splits and their files in YAML for programs, then splits and classes as tables for people.

    Args:
        suffix: suffix of the files, which are named ``SPLIT-00000-of-00016.SUFFIX``.
        digest: of what the folder was made from, which the card records in a comment.
    """
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for name in splits:  # JSON strings are YAML strings; quoted, a split named `on` is no bool
        lines += [f"  - split: {json.dumps(name)}", f"    path: {json.dumps(f'{name}-*.{suffix}')}"]
    source = one_line(manifest.source.get("url", "an unknown source"))
    lines += ["---", "", f"Exported by {manifest.writer} from {source}.", ""]
    lines += ["| split | records | shards |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {manifest.splits[name].records:,} | {manifest.splits[name].shards:,} |" for name in splits]
    if manifest.schema.label is not None:
        lines += ["", f"Classes, the values of {_cell(manifest.schema.label)}:", ""]
        lines += [f"| id | class | {' | '.join(splits)} |", f"| ---: | --- |{' ---: |' * len(splits)}"]
        for number, value in enumerate(class_names(manifest.schema, manifest.classes[:_CLASSES_SHOWN])):
            counts = " | ".join(f"{manifest.splits[name].class_counts[number]:,}" for name in splits)
            lines.append(f"| {number} | {_cell(value)} | {counts} |")
        if len(manifest.classes) > _CLASSES_SHOWN:
            lines.append(f"\nand {len(manifest.classes) - _CLASSES_SHOWN:,} more.")
    lines += ["", f"<!-- made from {digest} -->"]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _cell(value: object) -> str:
    """Return a value as the cell of a Markdown table.

    >>> _cell("a|b\\nc\\x1b[31m")
    '`a\\\\|b c?[31m`'
    """
    text = one_line(str(value).replace("`", "'")).replace("|", "\\|")
    return f"`{text}`" if text else ""
