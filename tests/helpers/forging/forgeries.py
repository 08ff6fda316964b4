"""Damages and forges files: bytes at random, values of the JSON in them, containers that lie about their content."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import xxhash
from safetensors import safe_open
from safetensors.numpy import save

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.manifest import _dump, _with_checksum

ODD: list[Any] = [
    None, True, "", "x", "\x1b[31m\n", [], {}, [[]], [1] * 5, -1, 0, 1, 1.5, -1e308, 1e308, 2**31, 2**63, 10**30,
    float("nan"), float("inf"), "9" * 5000, [30000, 30000], {"a": {"b": [None]}}, "/dev/zero", "s3://nowhere/x",
]  # fmt: skip
SPECIAL = ("fifo", "folder", "device", "dangling link", "empty")


def plant(path: Path, kind: str) -> None:
    """Put something that is no file of data at a path."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nowhere/at/all")


def damaged(random: Random, data: bytes) -> bytes:
    """Change, cut, insert, repeat or blank some bytes, at up to four places."""
    text = bytearray(data)
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(text) + 1)
        size = min(random.choice([1, 1, 4, 8, 64, 4096]), len(text))
        match random.randrange(6):
            case 0 | 1:
                text[start : start + size] = random.randbytes(min(size, len(text) - start))
            case 2:
                del text[start:]
            case 3:
                text[start:start] = random.randbytes(size)
            case 4:
                text[start : start + 8] = random.choice([2**31 - 1, 2**40, 2**62, -1]).to_bytes(
                    8, "little", signed=True
                )
            case _:
                del text[start : start + size]
    return bytes(text)


def odd_json(random: Random, tree: Any) -> Any:
    """Put odd values at up to three places of a JSON tree, or in place of it; or leave a key out."""
    tree = {"": copy.deepcopy(tree)}
    for _ in range(random.randint(1, 3)):
        holders = list(_holders(tree))
        holder = random.choice(holders)
        place = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if random.random() < 0.15 and holder is not tree:
            del holder[place]
        else:
            holder[place] = copy.deepcopy(random.choice(ODD))
    return tree[""]


def _holders(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (dict, list)) and tree:
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _holders(value)


# -- one function a kind: from the original's bytes, and perhaps its name, to those of a forgery ---------------------


def members(data: bytes) -> dict[str, bytes]:
    """The members of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(content: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of some members."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", how) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return sink.getvalue()


def hdf5(random: Random, data: bytes) -> bytes:
    """An HDF5 file some of whose arrays are others, or elsewhere, or huge."""
    path = Path(f"/tmp/forged-{os.getpid()}.h5")
    path.write_bytes(data)
    try:
        with h5py.File(path, "r+") as file:
            found: list[str] = []
            file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
            for name in random.sample(found, min(len(found), random.randint(1, 3))):
                shape = file[name].shape
                del file[name]
                _replace(random, file, name, shape)
        return path.read_bytes()
    finally:
        path.unlink()


def _replace(random: Random, file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    match random.randrange(9):
        case 0:
            file[name] = h5py.ExternalLink("/dev/zero", "/x")
        case 1:
            file[name] = h5py.SoftLink("/nowhere")
        case 2:
            file.create_dataset(name, (1 << 32,), "f4", chunks=(1 << 20,), compression="gzip")
        case 3:
            file.create_dataset(name, shape, "f4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)])
        case 4:
            file.create_dataset(name, data=np.zeros((*shape, 2), "f4"))
        case 5:
            file.create_dataset(name, data="text")
        case 6:
            file.create_group(name)
        case 7:
            file.create_dataset(name, data=np.full(shape, 1, "c16"))


def model(random: Random, data: bytes) -> bytes:
    """A model's file: its JSON, its manifest with a right checksum, its weights, or its container is another."""
    content = members(data)
    run, manifest = json.loads(content["ringfeed.json"]), content["ringfeed-dataset.json"]
    match random.randrange(6):
        case 0:
            return damaged(random, data)
        case 1:
            content["ringfeed.json"] = json.dumps(odd_json(random, run)).encode()
        case 2:
            run["config"]["model"] = odd_json(random, run["config"]["model"])
            content["ringfeed.json"] = json.dumps(run).encode()
        case 3:
            content["ringfeed-dataset.json"] = signed(odd_json(random, json.loads(manifest)))
        case 4:
            content["model.weights.h5"] = hdf5(random, content["model.weights.h5"])
        case 5:
            name = random.choice(list(content))
            content[name] = damaged(random, content[name])
    return archive_of(content, random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))


def signed(value: Any) -> bytes:
    """A manifest with the checksum of its content, where it can have one."""
    if not isinstance(value, dict):
        return json.dumps(value).encode()
    value.pop("checksum", None)
    try:
        body = _dump(value)
    except ValueError:
        return json.dumps(value).encode()
    return _with_checksum(body, checksum(body))


def weights(random: Random, data: bytes) -> bytes:
    """An HDF5 file of weights."""
    return damaged(random, data) if random.random() < 0.5 else hdf5(random, data)


def costs(random: Random, data: bytes) -> bytes:
    """Costs of a simulation."""
    if random.random() < 0.2:
        return damaged(random, data)
    return json.dumps(odd_json(random, json.loads(data))).encode()


def records(random: Random, data: bytes) -> bytes:
    """The records of a rank: other metadata, other columns, other values."""
    if random.random() < 0.3:
        return damaged(random, data)
    table = pa.ipc.open_stream(data).read_all()
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    if random.random() < 0.4:
        key = random.choice(list(metadata))
        metadata[key] = str(random.choice(ODD)).replace("\0", "")
    else:
        name = random.choice(table.schema.names)
        column = table.schema.get_field_index(name)
        match random.randrange(4):
            case 0:
                table = table.drop_columns([name])
            case 1:
                table = table.set_column(column, name, pa.array(["x"] * len(table)))
            case 2:
                table = table.set_column(column, name, pa.array([float("nan")] * len(table)))
            case 3 if name != "activity":
                kind = table.schema.field(name).type
                odd = random.choice([-1, 2**31 - 1] if pa.types.is_integer(kind) else [-1.0, 1e30, float("inf")])
                field = pa.field(name, kind, nullable=False)
                table = table.set_column(column, field, pa.array([odd] * len(table), kind))
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata(metadata)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


def manifest(random: Random, data: bytes) -> bytes:
    """The manifest of a dataset, with a right checksum."""
    return damaged(random, data) if random.random() < 0.3 else signed(odd_json(random, json.loads(data)))


def opened(data: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata and arrays of a checkpoint."""
    path = Path(f"/tmp/forged-{os.getpid()}.safetensors")
    path.write_bytes(data)
    try:
        with safe_open(path, "np") as file:
            return dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    finally:
        path.unlink()


def with_dataset(data: bytes, url: str) -> bytes:
    """A checkpoint that names another dataset."""
    metadata, arrays = opened(data)
    state = json.loads(metadata["state"])
    state["config"]["data"]["url"] = url
    return bytes(save(arrays, {**metadata, "state": json.dumps(state)}))


def checkpoint(random: Random, data: bytes) -> bytes:
    """A checkpoint, whose name is to have its hash."""
    if random.random() < 0.3:
        return damaged(random, data)
    metadata, arrays = opened(data)
    match random.randrange(3):
        case 0:
            metadata["state"] = json.dumps(odd_json(random, json.loads(metadata["state"])))
        case 1:
            state = json.loads(metadata["state"])
            state["config"]["model"] = odd_json(random, state["config"]["model"])
            metadata["state"] = json.dumps(state)
        case 2:
            name = random.choice(list(arrays))
            arrays[name] = random.choice([np.zeros(3, "f4"), np.zeros((2, 2), "i8"), np.zeros(0, "u1")])
    return bytes(save(arrays, metadata))


def configuration(random: Random, data: bytes) -> bytes:
    """A configuration: JSON is YAML."""
    if random.random() < 0.3:
        return damaged(random, data)
    return json.dumps(odd_json(random, json.loads(data))).encode()


FORGERS: dict[str, Callable[[Random, bytes], bytes]] = {
    "model": model,
    "weights": weights,
    "records": records,
    "costs": costs,
    "arrow": damaged,
    "manifest": manifest,
    "shard table": damaged,
    "checkpoint": checkpoint,
    "configuration": configuration,
}


def hashed_name(name: str, data: bytes) -> str:
    """The name that a checkpoint of these bytes has."""
    return f"{name.rsplit('-', 1)[0]}-{xxhash.xxh3_128_hexdigest(data)}.safetensors"
