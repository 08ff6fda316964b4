"""A network for runs whose samples are counted: in each step it calls ``note(step, ids)``, which the test defines."""

NETWORK = """
class Note(keras.layers.Layer):
    def build(self, shape):
        self.steps = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
    def call(self, ids, training=False):
        seen = tf.numpy_function(note, [self.steps.value, ids], tf.int64)
        with tf.control_dependencies([seen]):
            self.steps.assign_add(1)
        return tf.cast(tf.ensure_shape(seen, [None]), tf.float32) * 0.0
    def compute_output_spec(self, ids, training=False): return keras.KerasTensor((None,))

def network(manifest, config):
    ids, value = keras.Input((), dtype="int64", name="id"), keras.Input((), dtype="float32", name="value")
    both = keras.ops.expand_dims(value + Note()(ids), 1)
    return keras.Model({"id": ids, "value": value}, keras.layers.Dense(2)(both))
"""
"""The part of a module after ``note``: the function of Python returns the ids."""
