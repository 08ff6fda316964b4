"""Names for the types of arrays in signatures.

Tested in tests/sharding/compute/test_kernels.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.integer]
Unsigned = npt.NDArray[np.unsignedinteger]
