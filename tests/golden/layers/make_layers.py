#!/usr/bin/env python3
"""Makes layers.json beside this file: values and gradients of PyTorch's layers and losses in fp32 (CPU), for tests/layers/pytorch.cpp.

    pip install torch
    python3 make_layers.py

Inputs are numbers that bf16 and fp16 represent exactly, so that the same values can be compared in all types. A layer has x, dy (the
gradient of its output) and its parameters, or tokens instead of x; the results are y, dx and the gradients of the parameters. A loss has x and targets or labels;
the results are the loss with reduction="mean" and dx, its gradient.
"""
import json, pathlib
import torch
from torch import nn

B, T = 2, 3  # two sequences of three positions: six rows
ROWS = B * T
generator = torch.Generator().manual_seed(38)


def numbers(*shape, scale=1.5):
    return (torch.randn(*shape, generator=generator) * scale).bfloat16().float()


def listed(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def layer(function, width, parameters=None, x=None):
    """`function` maps x, and the parameters by name, to y."""
    x = (numbers(ROWS, width) if x is None else x).requires_grad_()
    parameters = {name: value.requires_grad_() for name, value in (parameters or {}).items()}
    y = function(x, **parameters)
    dy = numbers(*y.shape)
    y.backward(dy)
    return dict(x=listed(x), dy=listed(dy), y=listed(y), dx=listed(x.grad),
                parameters=[dict(name=name, value=listed(value), gradient=listed(value.grad)) for name, value in parameters.items()])


def embedding(tokens, weight):
    weight.requires_grad_()
    y = nn.functional.embedding(torch.tensor(tokens), weight)
    dy = numbers(*y.shape)
    y.backward(dy)
    return dict(tokens=tokens, dy=listed(dy), y=listed(y), parameters=[dict(name="weight", value=listed(weight), gradient=listed(weight.grad))])


def loss(module, width, targets=None, labels=None, scale=1.5):
    x = numbers(ROWS, width, scale=scale).requires_grad_()
    value = module(x, targets if labels is None else torch.tensor(labels))
    value.backward()
    result = dict(smoothed=getattr(module, "label_smoothing", 0) > 0, x=listed(x), loss=listed(value)[0], dx=listed(x.grad))
    result["targets" if labels is None else "labels"] = listed(targets) if labels is None else labels
    return result


LABELS = [2, 0, 4, 4, 1, 3]
WEIGHT = torch.tensor([0.5, 2.0, 0.25, 1.0, 3.0])
POS_WEIGHT = torch.tensor([0.5, 2.0, 1.0, 4.0, 0.0])
wide = numbers(ROWS, 7, scale=8)  # where activations are flat, and softmax has one large element
layers = {
    "linear": layer(nn.functional.linear, 7, dict(weight=numbers(5, 7), bias=numbers(5))),
    "embedding": embedding([3, 0, 3, 7, 1, 3], numbers(8, 5)),
    "relu": layer(nn.ReLU(), 7),
    "gelu": layer(nn.GELU(approximate="tanh"), 7),
    "gelu erf": layer(nn.GELU(), 7),
    "silu": layer(nn.SiLU(), 7, x=wide.clone()),
    "tanh": layer(nn.Tanh(), 7),
    "sigmoid": layer(nn.Sigmoid(), 7, x=wide.clone()),
    "softmax": layer(nn.Softmax(dim=-1), 7),
    "softmax of large numbers": layer(nn.Softmax(dim=-1), 7, x=wide.clone()),
    "log_softmax": layer(nn.LogSoftmax(dim=-1), 7, x=wide.clone()),
    "swiglu": layer(lambda x: nn.functional.silu(x[:, :5]) * x[:, 5:], 10),
    "transpose": layer(lambda x: x.unflatten(1, (3, 4)).transpose(1, 2).flatten(1), 12),
    "identity": layer(nn.Identity(), 4),
    "position_embedding": layer(lambda x, weight: x + nn.functional.embedding(torch.arange(ROWS) % T, weight), 5,
                                dict(weight=numbers(4, 5))),
    "layer_norm": layer(lambda x, weight, bias: nn.functional.layer_norm(x, (7,), weight, bias), 7,
                        dict(weight=numbers(7), bias=numbers(7))),
    "rms_norm": layer(lambda x, weight: nn.functional.rms_norm(x, (7,), weight, eps=1e-6), 7, dict(weight=numbers(7))),
}
losses = {
    "cross_entropy": loss(nn.CrossEntropyLoss(), 5, labels=LABELS),
    "cross_entropy, ignored": loss(nn.CrossEntropyLoss(), 5, labels=[2, -100, 4, 4, -100, 3]),
    "cross_entropy, smoothed": loss(nn.CrossEntropyLoss(label_smoothing=0.2), 5, labels=LABELS),
    "cross_entropy, weights": loss(nn.CrossEntropyLoss(weight=WEIGHT), 5, labels=[2, 0, -100, 4, 1, 3]),
    "cross_entropy, weights, smoothed": loss(nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.3), 5, labels=[2, 0, -100, 4, 1, 3]),
    "mean_squared_error": loss(nn.MSELoss(), 5, numbers(ROWS, 5)),
    "l1_loss": loss(nn.L1Loss(), 5, numbers(ROWS, 5)),
    "huber_loss": loss(nn.HuberLoss(delta=0.75), 5, numbers(ROWS, 5)),
    "smooth_l1_loss": loss(nn.SmoothL1Loss(beta=0.75), 5, numbers(ROWS, 5)),
    "binary_cross_entropy_with_logits": loss(nn.BCEWithLogitsLoss(), 5, torch.rand(ROWS, 5, generator=generator), scale=8),
    "binary_cross_entropy_with_logits, pos_weight": loss(nn.BCEWithLogitsLoss(pos_weight=POS_WEIGHT), 5,
                                                         torch.randint(0, 2, (ROWS, 5), generator=generator).float()),
}
with open(pathlib.Path(__file__).with_name("layers.json"), "w") as file:
    lines = lambda cases: ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    file.write(f'{{"torch": "{torch.__version__}", "B": {B}, "T": {T},\n"layers": {{\n{lines(layers)}}},\n"losses": {{\n{lines(losses)}}}}}\n')
