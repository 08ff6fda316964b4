"""Fetch the bytes of shards from a store or a cache, in parallel and ahead of need."""

__all__: list[str] = []
