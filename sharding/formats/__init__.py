"""The formats of shards on storage, one a module; each turns record batches into the bytes of a file."""

from .encode import ShardEncoder, encode_shard, open_encoder
from .example import RecordLayout, plan_layout

__all__ = ["RecordLayout", "ShardEncoder", "encode_shard", "open_encoder", "plan_layout"]
