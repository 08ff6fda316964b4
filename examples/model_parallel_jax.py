"""Train a network whose weights are spread over several devices, from shards, with Keras on JAX.

    python examples/model_parallel_jax.py URL [--devices 4] [--epochs 3]

TensorFlow and Keras have no model parallelism together; on JAX, `keras.distribution.ModelParallel` splits variables
over a mesh of devices. ringfeed feeds it with NumPy arrays. Without accelerators the devices are parts of the CPU.
"""

import argparse
import os


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("url", help="dataset that shard-dataset wrote, with a label and numbers")
    parser.add_argument("--split", default="train", help="split to train on [train]")
    parser.add_argument("--devices", type=int, default=4, help="devices that share the weights [4]")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the split [3]")
    parser.add_argument("--batch-size", type=int, default=256, help="samples in a batch [256]")
    parser.add_argument(
        "--units", type=int, default=256, help="units of the hidden layer, a multiple of --devices [256]"
    )
    return parser.parse_args()


def main() -> None:
    """Train, and print the loss of each epoch and where the weights are."""
    options = parse()
    os.environ["KERAS_BACKEND"] = "jax"  # both before Keras and JAX are imported
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={options.devices}")
    import keras
    import numpy as np

    from ringfeed.pipeline import Loader

    loader = Loader(options.url, split=options.split, batch_size=options.batch_size, remainder="drop")
    schema = loader.manifest.schema
    numbers = [f.name for f in schema.features if f.dtype.startswith(("float", "int")) and not f.shape]
    features = [name for name in numbers if name != schema.label]
    mesh = keras.distribution.DeviceMesh(
        shape=(1, options.devices), axis_names=("batch", "model"), devices=keras.distribution.list_devices()
    )
    layout = keras.distribution.LayoutMap(mesh)
    layout["hidden/kernel"] = (None, "model")  # each device holds some of the columns
    layout["hidden/bias"] = ("model",)
    layout["logits/kernel"] = ("model", None)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))

    inputs = keras.Input((len(features),))
    hidden = keras.layers.Dense(options.units, activation="relu", name="hidden")(
        keras.layers.BatchNormalization()(inputs)
    )
    network = keras.Model(inputs, keras.layers.Dense(len(loader.manifest.classes), name="logits")(hidden))
    network.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    for epoch in range(options.epochs):
        losses = []
        for batch in loader.numpy_epoch(epoch):
            columns = [np.nan_to_num(batch[name].astype(np.float32)) for name in features]
            losses.append(float(network.train_on_batch(np.stack(columns, axis=1), batch["class_id"])))
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
    kernel = network.get_layer("hidden").kernel.value
    print(
        f"the hidden kernel, {kernel.shape}, is on {len(kernel.sharding.device_set)} devices, "
        f"{kernel.addressable_shards[0].data.shape} on each"
    )


if __name__ == "__main__":
    main()
