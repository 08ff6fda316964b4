"""What other programs need to open a dataset: each module knows the files of one of them, and imports none of them."""

from __future__ import annotations

__all__: list[str] = []
