"""Checks that another loader gives the same batches: one that resumes from a state, or that was pickled.

Tested in tests/pipeline/test_resume_state.py and tests/pipeline/test_pickling.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from ringfeed.sharding.common.validation import mapping, texts
from ringfeed.sharding.errors import ConfigError, DatasetError

T = TypeVar("T")


def shares_digest(*weights: npt.NDArray[np.float64] | None) -> str | None:
    """A digest of the class shares of one epoch or several; None for the natural mix."""
    if all(each is None for each in weights):
        return None
    return xxhash.xxh3_64_hexdigest(b"".join(b"natural" if each is None else each.tobytes() for each in weights))


def check_state(state: Mapping[str, Any], expected: Mapping[str, Any], what: str = "") -> None:
    """Compare a state with the one that a loader has at the same epoch and step.

    Args:
        state: the state, parsed from JSON.
        expected: the loader's own state.
        what: in a mixture, the name of the dataset and a dot.

    Raises:
        ConfigError: the loader would give other batches; the message names the difference.
    """
    lacking = [name for name in expected if name not in state]
    if lacking:
        raise ConfigError(f"this is not the state of a loader: it has no {what}{lacking[0]}")
    for name in sorted(expected, key=lambda name: name != "shares"):  # a mixture chooses the geometry by the shares
        own, kept = expected[name], state[name]
        if name == "datasets" and isinstance(kept, Mapping) and kept.keys() == own.keys():
            for dataset in own:
                check_state(
                    mapping(f"datasets.{dataset} of a state", kept[dataset], "what `state` returned"),
                    own[dataset],
                    f"{dataset}.",
                )
        elif name == "quarantined" and isinstance(kept, list):
            if missing := sorted(set(texts(f"{what}quarantined of a state", kept, "paths")) - set(own)):
                raise ConfigError(
                    f"the state has shards in quarantine; make the loader with {what}quarantined={missing}"
                )
        elif kept != own:
            raise ConfigError(
                f"the state is of {what}{name}={json.dumps(kept)}, this loader has {json.dumps(own)}: "
                "its batches would differ"
            )


def remake(kind: type[T], arguments: Mapping[str, Any], identity: object) -> T:
    """Make a loader or mixture again in another process, with threads, caches and clients of its own.

    Args:
        kind: `Loader`, `Mixture` or a subclass that takes the same arguments.
        arguments: keyword arguments of the pickled one.
        identity: its attribute `identity`.

    Raises:
        RingfeedError: it cannot be made here.
        DatasetError: its batches would differ.
    """
    made = kind(**arguments)
    if made.identity != identity:  # type: ignore[attr-defined]
        raise DatasetError(
            f"the {kind.__name__.lower()} cannot be made again as it was pickled: its dataset was rewritten since, and "
            "its batches would differ; make and pickle it anew"
        )
    return made
