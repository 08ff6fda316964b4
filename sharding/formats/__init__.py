"""The formats of shards on storage, one a module; each turns record batches into the bytes of a file."""

from .example_encode import RecordLayout, plan_layout
from .shard_encode import ShardEncoder, encode_shard, open_encoder

__all__ = ["RecordLayout", "ShardEncoder", "encode_shard", "open_encoder", "plan_layout"]
