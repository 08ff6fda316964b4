"""The check that all ranks hold the same weights, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import xxhash

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import Variable, copies

from .ring import Ring


def weights_digest(variables: Sequence[Variable]) -> list[str]:
    """Return the xxh3-128 of each variable's dtype, shape and bytes, as hexadecimal text."""
    digests = []
    for variable in variables:
        array = np.asarray(tf.convert_to_tensor(variable))
        digests.append(xxhash.xxh3_128_hexdigest(f"{array.dtype}{array.shape}".encode() + array.tobytes()))
    return digests


def assert_same_weights(ring: Ring, variables: Sequence[Variable]) -> str:
    """Return one digest of all weights, or raise a TrainingError unless all ranks hold the same, bit for bit.

    The message names the ranks that differ from rank 0, and the first variable.
    """
    of_replicas = zip(*map(copies, variables), strict=True)
    own = [weights_digest(weights) for weights in of_replicas]
    gathered = own if len(own) > 1 else ring.allgather_object(own[0])
    others = [rank for rank, digests in enumerate(gathered) if digests != gathered[0]]
    if others:
        pairs = zip(variables, gathered[0], gathered[others[0]], strict=True)
        name = next(getattr(v, "path", v.name) for v, mine, other in pairs if mine != other)
        raise TrainingError(
            f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} of {len(gathered)} ended with "
            f"different weights than rank 0 (first difference: {name}): the ranks did not train the same model"
        )
    return xxhash.xxh3_128_hexdigest("".join(gathered[0]).encode())
