"""A trained network as an ONNX model, with probabilities or a prediction as its output.

It has the inputs of the `.keras` file. The preprocessing stays outside: ONNX has no hash tables of texts, and no
decoders of images.
Tested in tests/training/serving/test_export.py.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.sharding.messages import brief

from .trained import TrainedModel

_OPSET = 17


def encode_onnx(model: TrainedModel) -> bytes:
    """Return the bytes of the ONNX model.

    A ConfigError says that tf2onnx is missing, or that two inputs of the network share a name; a TrainingError that
    tf2onnx cannot convert the network.
    """
    try:
        import tf2onnx
    except ModuleNotFoundError as error:
        raise ConfigError(f"an .onnx file needs {error.name}: pip install 'ringfeed[onnx]'") from error
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # what it cannot convert, `check_onnx` finds

    def spec(tensor: keras.KerasTensor) -> Any:
        return tf.TensorSpec([None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype), name=tensor.name)

    specs = tf.nest.map_structure(spec, model.network.input)
    flat = tf.nest.flatten(specs)
    if len({spec.name for spec in flat}) != len(flat):
        raise ConfigError("the network's inputs have no names of their own, which ONNX needs")

    def scores(*tensors: Any) -> dict[str, Any]:
        return {model.scores_name: model.scores_of(tf.nest.pack_sequence_as(specs, tensors))}

    try:
        function = tf.function(scores, input_signature=flat, autograph=False)
        handlers: Any = {"Erfc": (_erfc, [])}
        converted, _ = tf2onnx.convert.from_function(
            function, input_signature=flat, opset=_OPSET, custom_op_handlers=handlers
        )
    except Exception as error:  # whatever tf2onnx meets in a graph
        raise TrainingError(
            f"tf2onnx cannot convert model.name={model.config.model.name} ({type(error).__name__}: {brief(error)}); "
            "export it as a SavedModel: --out FOLDER"
        ) from error
    entry = converted.metadata_props.add()
    entry.key, entry.value = "classes", json.dumps(model.classes)
    return bytes(converted.SerializeToString())


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    """Convert the complementary error function, as in GELU, which neither ONNX nor tf2onnx has: 1 - erf(x)."""
    from tf2onnx.utils import map_onnx_to_numpy_type

    output, dtype = node.output[0], graph.get_dtype(node.output[0])
    shape, one = graph.get_shape(output), np.array(1, map_onnx_to_numpy_type(dtype))
    inputs = [graph.make_const(f"{node.name}_one", one).output[0], graph.make_node("Erf", node.input).output[0]]
    graph.remove_node(node.name)
    graph.make_node("Sub", inputs, outputs=[output], shapes=[shape], dtypes=[dtype])
