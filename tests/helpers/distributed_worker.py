"""A program for tests: one worker of a strategy of `tf.distribute`. Prints, as JSON, what its replicas were given."""

import json
import sys
from typing import Any


def main(kind: str, url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The ids that each local replica got at each step; what the replicas of all workers added up; and Keras' steps."""
    import tensorflow as tf

    from ringfeed.pipeline import Loader

    if kind == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy: Any = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    loader = Loader(url, **options)

    @tf.function
    def add_up(ids: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(ids))

    def negate(batch: Any) -> Any:
        return {**batch, "negative": -batch["id"]}

    seen, sums = [], []
    for batch in loader.distributed_epoch(strategy, 1, 2, transform=negate, num_parallel_calls=2):
        seen.append([ids.numpy().tolist() for ids in strategy.experimental_local_results(batch["id"])])
        total = strategy.run(add_up, (batch["negative"],))
        sums.append(int(strategy.experimental_local_results(total)[0]))
    result: dict[str, Any] = {"ids": seen, "sums": sums}
    if kind == "mirrored":  # Keras 3.15 fits no model in a strategy of several workers, whatever the data are
        result["steps"] = fit(strategy, Loader(url, **options, columns=["vector"]))
    return result


def fit(strategy: Any, loader: Any) -> int:
    """The steps that Keras makes in an epoch as it is."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(loader.epoch(0, as_supervised=True), verbose=0, shuffle=False)
    return int(model.optimizer.iterations.numpy())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
