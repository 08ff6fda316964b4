"""The command `ringfeed export`: writes a trained model for other programs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.destination.atomic_folder import open_atomic_folder
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.training.reports.console import configure_logging
from ringfeed.training.run.state.outputs import check_writable, write_file

if TYPE_CHECKING:
    from .trained import TrainedModel

DESCRIPTION = (
    "Write a trained model for other programs: a SavedModel that takes raw columns, a .keras or an .onnx file."
)

EPILOG = """\
examples:
  ringfeed export model.keras --out served/1               # a SavedModel, with the preprocessing in it
  ringfeed export runs/1 --out model.keras                 # of the newest checkpoint of a run
  ringfeed export s3://bucket/runs/1 --out model.onnx

The end of PATH chooses the format:

  PATH           inputs                                   outputs
  a folder       the columns, by name, in their dtypes    probabilities [batch, classes], class [batch]
  NAME.keras     the network's, as output.model           logits
  NAME.onnx      the network's                            probabilities

task: multilabel has no class, task: regression has a prediction [batch] in place of both.
A SavedModel takes texts as texts, images as the bytes of their files or as the dataset's arrays, and missing floats as
NaN. To its signature serving_default no other values are missing; if some were in training, with_missing also takes
missing_COLUMN, bool [batch]: True where the value of COLUMN is missing, whatever is given for it. Its
assets.extra/ringfeed.json names inputs, dtypes and classes. An export replaces a file, but not a folder: that of the
same model stays as it is, another one is refused. It is opened and compared with the model on a small batch before it
is written to PATH.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "model", metavar="RUN_OR_MODEL", help="file that output.model named, or a run's folder of checkpoints"
    )
    parser.add_argument("--out", required=True, metavar="PATH", help="file or folder to write: a path or URL")
    parser.add_argument(
        "--data", metavar="URL", help="for checkpoints: where the run's dataset is now [where the run found it]"
    )
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="import the module:function that the model names, and open a remote dataset that checkpoints name",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON on standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


@process_folder()
def run(args: argparse.Namespace) -> int:
    kind = _kind(args.out)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    configure_logging(0, quiet=args.quiet)
    is_new = True
    if kind == "saved_model":
        Storage(args.out).check_writable()
        model = _open(args)
        is_new = _write_folder(model, Storage(args.out))
    else:
        check_writable(args.out)
        model = _open(args)
        _write_file(model, args.out, kind)
    if args.json:
        written = {"out": args.out, "format": kind, "step": model.step, "classes": model.classes}
        sys.stdout.write(json.dumps(written) + "\n")
    elif not args.quiet:
        model_of = f"the model of step {model.step}"
        done = f"wrote {model_of} to {args.out}" if is_new else f"{model_of} is there already: {args.out}"
        sys.stdout.write(f"{done} ({kind})\n")
    return 0


def _open(args: argparse.Namespace) -> TrainedModel:
    with quiet_tensorflow():
        from .trained import open_trained
    return open_trained(args.model, args.data, trust_code=args.trust_code)


def _kind(out: str) -> str:
    """Return the format that a path asks for; a ConfigError if it ends as the file of another format.

    >>> _kind("a/model.keras"), _kind("s3://b/served/1"), _kind("model.onnx")
    ('keras', 'saved_model', 'onnx')
    """
    suffix = Path(out).suffix
    if suffix in (".h5", ".hdf5", ".pb", ".tflite", ".pt", ".zip"):
        raise ConfigError(f"--out: a path ends in .keras, in .onnx, or names a folder for a SavedModel, got {out}")
    return {".keras": "keras", ".onnx": "onnx"}.get(suffix, "saved_model")


def _write_file(model: TrainedModel, out: str, kind: str) -> None:
    if kind == "keras":
        from ringfeed.training.models.model_file import encode_model

        from .check_export import check_keras

        content = encode_model(model.network, model.config, model.manifest, model.step)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(content)
            check_keras(model, path)
    else:
        from .check_export import check_onnx
        from .onnx import encode_onnx

        content = encode_onnx(model)
        check_onnx(model, content)
    write_file(out, content)


def _write_folder(model: TrainedModel, target: Storage) -> bool:
    """Write a SavedModel, and return whether it was not there; in a store `saved_model.pb` comes last."""
    from .check_export import check_saved_model
    from .saved_model import provenance_of, saved_model_files

    with open_atomic_folder(target, provenance_of(model)) as storage:
        if storage is None:
            return False
        with quiet_tensorflow():
            files = saved_model_files(model, check_saved_model)
        for name in sorted(files, key=lambda name: name == "saved_model.pb"):
            storage.write(name, files[name])
    return True
