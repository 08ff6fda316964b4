"""File formats of shards: TFRecord with `tf.train.Example`, and Parquet; encoders and decoders in memory."""

from .example_encode import RecordLayout, plan_layout
from .shard_encode import ShardEncoder, ShardEncoding, encode_shard, open_encoder

__all__ = ["RecordLayout", "ShardEncoder", "ShardEncoding", "encode_shard", "open_encoder", "plan_layout"]
