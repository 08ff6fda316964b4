"""The formats of shards on storage, one a module; each turns record batches into the bytes of a file."""

from .encode import EncodedShard, encode_shard
from .example import RecordLayout, plan_layout

__all__ = ["EncodedShard", "RecordLayout", "encode_shard", "plan_layout"]
