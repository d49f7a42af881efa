"""The convolutional networks written with torch.nn, to compare with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OptuNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 4, bias=False)
        self.conv2 = nn.Conv2d(2, 10, 5, groups=2, bias=False)
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 3)
        return self.fc(F.relu(self.conv2(x)).mean((2, 3)))


class LeNet(nn.Module):
    def __init__(self, channels: int, maps: int, width: int = 6):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 5)
        self.conv2 = nn.Conv2d(width, 8 * width // 3, 5)
        self.fc1 = nn.Linear(8 * width // 3 * maps**2, 20 * width)
        self.fc2 = nn.Linear(20 * width, 14 * width)
        self.fc3 = nn.Linear(14 * width, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class FRN(nn.Module):
    """Filter response normalisation, as its paper writes it down."""

    def __init__(self, channels: int):
        super().__init__()
        shape = (1, channels, 1, 1)
        self.tau, self.beta, self.gamma = (
            nn.Parameter(torch.full(shape, value)) for value in (0.0, 0.0, 1.0)
        )

    def forward(self, x):
        nu2 = (x**2).mean((2, 3), keepdim=True)
        return torch.maximum(self.gamma * x / (nu2 + 1e-6) ** 0.5 + self.beta, self.tau)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm, activation):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)
            )
        self.activation = activation

    def forward(self, x):
        inner = self.activation(self.bn1(self.conv1(x)))
        return self.activation(self.bn2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, stages: tuple[int, ...], width: int, norm, activation):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = norm(width)
        self.activation = activation
        self.layers = []
        inputs = width
        for number, count in enumerate(stages, start=1):
            outputs, blocks = width * 2 ** (number - 1), []
            for _ in range(count):
                stride = 2 if inputs != outputs else 1
                blocks.append(Block(inputs, outputs, stride, norm, activation))
                inputs = outputs
            self.layers.append(f"layer{number}")
            setattr(self, self.layers[-1], nn.Sequential(*blocks))
        self.linear = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.bn1(self.conv1(x)))
        for name in self.layers:
            x = getattr(self, name)(x)
        return self.linear(x.mean((2, 3)))


def frn_resnet(blocks: int, width: int) -> ResNet:
    return ResNet((blocks,) * 3, width, FRN, F.silu)


def resnet18(width: int) -> ResNet:
    return ResNet((2, 2, 2, 2), width, nn.BatchNorm2d, F.relu)
