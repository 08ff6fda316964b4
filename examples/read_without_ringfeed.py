"""Reads a TFRecord dataset as docs/format.md specifies it, with the standard library and NumPy, and checks all of it.

    python read_without_ringfeed.py DATASET | head

It shows the format and is slow, because it computes each CRC in Python: the package google-crc32c is much faster.
"""

import base64
import json
import sys
import zlib
from pathlib import Path

import numpy as np

SECRET = base64.b64decode(  # of XXH3, from its specification
    "uP5sOSOkS758AYEs9yGtHN7UbemDkJfbckCkpLezZx/LeeZOzMDleIJa0H3M/3IhuAhGdPdDJI7gNZDmgTomTDwoUruRwwDLiNBlixtTLqNxZEiX"
    "og35TjgZ70ap3qzYqPp2P+OcND/53LvHxwtPHYpR4EvNtFkxyJ9+ydl4c2TqxayDNNPrw8WBoP/6E2PrFw3dUbfw2knTFlUmKdRonisWvlh9R6H8"
    "j/i40XrQMc5FyzqPlRYEKK/X+8q7S0B+"
)
U32, U64, P1, Q1, Q2 = (1 << 32) - 1, (1 << 64) - 1, 0x9E3779B1, 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
START = [0xC2B2AE3D, Q1, Q2, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x85EBCA77, 0x27D4EB2F165667C5, P1]
TABLE = list(range(256))  # of CRC-32C
for _ in range(8):
    TABLE = [entry >> 1 ^ 0x82F63B78 * (entry & 1) for entry in TABLE]


def check(right, what):
    if not right:
        raise ValueError(what)


def xxh3_128(data):
    """XXH3-128 of more than 240 bytes, which each file that dataset.json names has."""

    def mixed(stripes, secret):
        both = stripes ^ secret
        return (stripes[:, [1, 0, 3, 2, 5, 4, 7, 6]] + (both & np.uint64(U32)) * (both >> np.uint64(32))).sum(axis=0)

    def merged(start, secret):
        a, b = ((sums ^ secret)[half::2].tolist() for half in (0, 1))
        total = start + sum(x * y & U64 ^ x * y >> 64 for x, y in zip(a, b, strict=True)) & U64
        total = (total ^ total >> 37) * 0x165667919E3779F9 & U64
        return f"{total ^ total >> 32:016x}"

    keys = np.array([np.frombuffer(SECRET, "<u8", 8, at) for at in range(129)])
    sums, size = np.array(START, np.uint64), len(data)
    blocks, rest = (size - 1) // 1024, (size - 1) % 1024 // 64
    for block in np.frombuffer(data, "<u8", 128 * blocks).reshape(blocks, 16, 8):
        sums = sums + mixed(block, keys[:128:8])
        sums = (sums ^ sums >> np.uint64(47) ^ keys[128]) * np.uint64(P1)
    sums = sums + mixed(np.frombuffer(data, "<u8", rest * 8, 1024 * blocks).reshape(rest, 8), keys[: 8 * rest : 8])
    sums = sums + mixed(np.frombuffer(data[-64:], "<u8")[None], keys[121])
    return "xxh3-128:" + merged(~(size * Q2) & U64, keys[117]) + merged(size * Q1 & U64, keys[11])


def masked_crc(data):
    crc = U32
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= U32
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & U32).to_bytes(4, "little")


def messages(data, at=0):
    while at < len(data):
        start, stop = at + 12, at + 12 + int.from_bytes(data[at : at + 8], "little")
        check(data[at + 8 : start] == masked_crc(data[at : at + 8]), f"the length at byte {at} is damaged")
        check(data[stop : stop + 4] == masked_crc(data[start:stop]), f"the record at byte {at} is damaged")
        yield data[start:stop]
        at = stop + 4


def varint(data, at):
    stop = next(place for place in range(at, len(data)) if data[place] < 128) + 1
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data[at:stop])) & U64, stop


def numbers(data, at=0):
    while at < len(data):
        number, at = varint(data, at)
        yield number


def fields(message, at=0):
    """Yield number and content of each field; in a record, each is length-delimited."""
    while at < len(message):
        tag, (size, start) = message[at], varint(message, at + 1)
        yield tag >> 3, message[start : (at := start + size)]


def value_of(feature, message):
    kind, dtype, shape = feature["example"], feature["dtype"], feature["shape"]
    values = [content for _, items in fields(message) for _, content in fields(items)]
    if kind == "bytes":  # arrays of objects, since others drop zero bytes at the end
        values = np.array([value.decode() if dtype == "string" else value for value in values], object)
    elif kind == "int64":
        values = np.array([*numbers(b"".join(values))], np.uint64).astype(dtype)
    else:
        values = np.frombuffer(b"".join(values), np.dtype("f4" if kind == "float" else dtype)).astype(dtype)
    return values if shape == [None] else np.reshape(values, shape) if shape else values[0]


def shards_of(about):
    """Yield the split and the name of each shard, generation by generation."""
    built = [{"shards": {name: split["shards"] for name, split in about["splits"].items()}}]
    for number, generation in enumerate(about.get("generations", built)):
        for split, shards in generation["shards"].items():
            stem = f"{split}-g{number:05d}" if number else split
            yield from ((split, f"{stem}-{shard:05d}-of-{shards:05d}.tfrecord") for shard in range(shards))


def read(root):
    """Yield the split and the record, values by column, of each record; None for a value that is missing."""
    data = Path(root, "_ringfeed/dataset.json").read_bytes()
    about = json.loads(data)
    check(about["checksum"] == xxh3_128(data[:-61] + b"\n}\n"), "dataset.json is damaged")  # without its last key
    plain = about["format_version"].startswith("1.") and about["shard_format"] == "tfrecord" and "lost" not in about
    check(plain, "a later format, Parquet, or a dataset with records that a repair left out")
    for path, info in {about["shards"]["path"]: about["shards"], **about.get("files", {})}.items():
        check(info["checksum"] == xxh3_128(Path(root, path).read_bytes()), f"{path} is damaged")
    features = {feature["name"]: feature for feature in about["features"]}
    label = next((name for name, feature in features.items() if "role" in feature), None)
    counts = {name: [0] * len(about["classes"]) for name in about["splits"]}
    for split, path in shards_of(about):
        data = Path(root, path).read_bytes()
        for message in messages(data if about["compression"] == "none" else zlib.decompress(data, 47)):
            entries = [dict(fields(entry)) for _, example in fields(message) for _, entry in fields(example)]
            found = {entry[1].decode(): entry[2] for entry in entries}
            record = {name: value_of(features[name], found[name]) if name in found else None for name in features}
            counts[split][about["classes"].index(record.get(label))] += 1
            yield split, record
    check(counts == {name: split["class_counts"] for name, split in about["splits"].items()}, "a record is missing")


if __name__ == "__main__":
    for split, record in read(sys.argv[1]):
        print(split, record)
