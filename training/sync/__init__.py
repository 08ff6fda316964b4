"""How ranks are kept in step: in every step or in rounds, and what they send.

Tested in tests/training/sync/test_rounds.py.
"""

__all__: list[str] = []
