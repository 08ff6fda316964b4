"""The order of operations in a graph, where they run on several devices.

Tested in tests/training/servers/test_worker_loop.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["finished"]


def finished(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Do some work in a graph, and return its result and a context whose operations wait for all of the work."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    result = work()
    return result, tf.control_dependencies(graph.get_operations()[before:])
