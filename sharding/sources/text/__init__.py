"""Sources of text files, CSV and JSON Lines, whose types are inferred.

Tested in tests/sharding/sources/text/test_jsonl.py.
"""

__all__: list[str] = []
