"""ResNet v1.5 in PyTorch: bottleneck blocks with the stride in their 3 x 3 convolution.

He et al., Deep Residual Learning for Image Recognition (2015), table 1; the stride as in NVIDIA's DeepLearningExamples.
The scale of each block's last batch normalisation begins at 0: Goyal et al., Accurate, Large Minibatch SGD (2017), 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

_EXPANSION = 4  # channels of a block's output over those within


def resnet(stages: Sequence[int], *, classes: int) -> nn.Module:
    """A network of bottleneck blocks.

    Args:
        stages: blocks in each stage; ``(3, 4, 6, 3)`` for ResNet-50.
        classes: units of the output.
    """
    layers: list[nn.Module] = [*_convolution(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, stride=2 if stage and not block else 1))
            channels = _EXPANSION * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, added to the input, or to a projection of it where the shape changes."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        out = _EXPANSION * width
        last = _convolution(width, out, 1)
        nn.init.zeros_(last[1].weight)
        self.branch = nn.Sequential(
            *_convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride=stride),
            nn.ReLU(inplace=True),
            *last,
        )
        keeps_shape = stride == 1 and channels == out
        self.shortcut = nn.Identity() if keeps_shape else nn.Sequential(*_convolution(channels, out, 1, stride=stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] to [batch, 4 * width, height / stride, width / stride]."""
        return torch.relu_(self.branch(x) + self.shortcut(x))


def _convolution(channels: int, out: int, size: int, *, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(out)
