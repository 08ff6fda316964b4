"""What is asked of a preparation, as a value; and what of it the manifest tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schema import Feature
from .comma_lists import ALL
from .image_transform import ImageOptions
from .steps import Step

__all__ = ["PrepareOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How to prepare the records of a source; by default they stay as they are.

    Attributes:
        features: types and shapes of columns, given by the user; they come first.
        steps: on columns and rows, in the order in which they are done.
        dedup: columns of which no two records may have the same values: the first stays. Empty: all columns; None:
            records may be alike. It comes after the steps.
        images: what to do to images; it comes last.
    """

    features: Mapping[str, Feature] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    dedup: tuple[str, ...] | None = None
    images: ImageOptions | None = None

    def recorded(self) -> dict[str, Any]:
        """As it stands in `dataset.json`, with no key for what was not asked; `specs.restore_options` reads it."""
        found = {
            "schema": [feature.to_json() for feature in self.features.values()],
            "steps": [step.spec for step in self.steps],
            "dedup": None if self.dedup is None else list(self.dedup) or [ALL],
            "images": "" if self.images is None else self.images.spec,
        }
        return {name: value for name, value in found.items() if value}

    def described(self, source: str) -> str:
        """A source and what was done to it, for errors.

        >>> PrepareOptions(dedup=()).described("a.csv")
        'a.csv (after --dedup)'
        """
        flags = [step.spec for step in self.steps]
        flags += [] if self.dedup is None else [f"--dedup {','.join(self.dedup)}".strip()]
        return f"{source} (after {' '.join(flags)})" if flags else source
