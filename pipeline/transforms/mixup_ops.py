"""Mixup and CutMix in TensorFlow operations.

Tested in tests/pipeline/transforms/test_mixup.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import CLASS_ID, SAMPLE_KEY, SOFT_LABEL, WEIGHT
from ringfeed.sharding.errors import ConfigError

from .apply import require_feature, unconverted

_MIXUP, _CUTMIX = 1, 2  # folded into a sample's key; image transforms draw by the key itself
_PHILOX = "philox"


@unconverted
def mix_up(
    element: Mapping[str, Any], features: Sequence[str], *, classes: int, alpha: float, group: int
) -> dict[str, Any]:
    """Apply `Mixup`, whose fields the arguments are, to an element."""
    _check(element, features, group)
    shares, draws = _draw(element, _MIXUP, alpha, group)
    shares, partners = tf.repeat(shares, group), _partners(draws[:, 0], group)
    mixed = {name: _mixed(element[name], partners, shares) for name in features}
    return {**element, **mixed, SOFT_LABEL: _mixed(_labels(element, classes), partners, shares)}


@unconverted
def cut_mix(element: Mapping[str, Any], feature: str, *, classes: int, alpha: float, group: int) -> dict[str, Any]:
    """Apply `CutMix`, whose fields the arguments are, to an element."""
    _check(element, [feature], group)
    images = element[feature]
    if len(images.shape) != 4:
        raise ConfigError(f"{feature!r} must be images [batch, height, width, channels], got {images.shape}")
    shares, draws = _draw(element, _CUTMIX, alpha, group)
    partners = _partners(draws[:, 0], group)
    mask = box_mask(shares, draws[:, 1], draws[:, 2], tf.shape(images)[1], tf.shape(images)[2])
    left = 1.0 - tf.reduce_mean(tf.cast(mask, tf.float32), axis=[1, 2])
    cut = tf.repeat(mask, group, axis=0)[..., None]
    labels = _mixed(_labels(element, classes), partners, tf.repeat(left, group))
    return {**element, feature: tf.where(cut, tf.gather(images, partners), images), SOFT_LABEL: labels}


def box_mask(shares: Any, rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """Masks of the pixels in boxes of ``1 - share`` of the area, clipped at the edges: bool [n, height, width].

    Args:
        shares: share of the area outside each box, in [0, 1]; float32 [n].
        rows: row of each centre as a fraction of the height, in [0, 1); float32 [n].
        columns: column of each centre as a fraction of the width, in [0, 1); float32 [n].
    """
    side = tf.sqrt(1.0 - shares)

    def inside(centre: Any, extent: Any) -> Any:
        size = tf.cast(extent, tf.float32)
        middle, half = (centre * size)[:, None], (side * size / 2)[:, None]
        pixels = tf.range(size)[None] + 0.5
        return (pixels >= middle - half) & (pixels < middle + half)

    return inside(rows, height)[:, :, None] & inside(columns, width)[:, None, :]


def _check(element: Mapping[str, Any], features: Sequence[str], group: int) -> None:
    for name in features:
        require_feature(element, name)
        if isinstance(element[name], tf.RaggedTensor):
            raise ConfigError(f"feature {name!r} is of variable length and cannot be mixed; pad it first, with Pad")
        if not tf.as_dtype(element[name].dtype).is_floating:
            raise ConfigError(
                f"feature {name!r} is {element[name].dtype.name}, and only floats can be mixed; decode it first"
            )
    if SAMPLE_KEY not in element:
        raise ConfigError(f"mixing draws by {SAMPLE_KEY!r}: make the Loader with sample_keys=True")
    if WEIGHT in element:
        raise ConfigError(
            "batches with padded samples cannot be mixed: use remainder='drop', and a world_size that divides "
            "batch_size"
        )
    batch = element[SAMPLE_KEY].shape[0]
    if batch is None or batch % group:
        raise ConfigError(f"group={group} does not divide the {batch} samples that a rank has of each batch")


def _draw(element: Mapping[str, Any], purpose: int, alpha: float, group: int) -> tuple[Any, Any]:
    """For each group a share from Beta(alpha, alpha), float32 [groups], and three numbers in [0, 1), [groups, 3]."""

    def one(key: Any) -> Any:
        first, second = tf.unstack(tf.random.split(tf.random.fold_in(key, purpose, alg=_PHILOX), 2, alg=_PHILOX))
        # Two gammas give a beta; in float64, as both may be tiny with a small alpha.
        two = tf.random.stateless_gamma([2], first, alpha, dtype=tf.float64)
        share = tf.cast(tf.math.divide_no_nan(two[0], two[0] + two[1]), tf.float32)
        return share, tf.random.stateless_uniform([3], second, alg=_PHILOX)

    signature = (tf.TensorSpec([], tf.float32), tf.TensorSpec([3], tf.float32))
    shares, draws = tf.map_fn(one, element[SAMPLE_KEY][::group], fn_output_signature=signature)
    return shares, draws


def _partners(draws: Any, group: int) -> Any:
    """The place in the batch of each sample's partner, another sample of its group: int32 [batch]."""
    shifts = 1 + tf.cast(draws * (group - 1), tf.int32)
    shifts = tf.minimum(shifts, group - 1)
    inner = (tf.range(group)[None] + shifts[:, None]) % group
    return tf.reshape(inner + group * tf.range(tf.shape(shifts)[0])[:, None], [-1])


def _labels(element: Mapping[str, Any], classes: int) -> Any:
    known = element.get(SOFT_LABEL)
    if known is not None:
        return known
    message = f"a {CLASS_ID} is not below classes={classes}: give as many as the dataset has"
    with tf.control_dependencies([tf.debugging.assert_less(element[CLASS_ID], classes, message)]):
        return tf.one_hot(element[CLASS_ID], classes)  # an id beyond the classes would get a label of zeros


def _mixed(values: Any, partners: Any, shares: Any) -> Any:
    wide = tf.cast(values, tf.float64 if values.dtype == tf.float64 else tf.float32)
    share = tf.cast(tf.reshape(shares, [-1, *[1] * (len(values.shape) - 1)]), wide.dtype)
    return tf.cast(share * wide + (1.0 - share) * tf.gather(wide, partners), values.dtype)
