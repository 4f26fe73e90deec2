#!/usr/bin/env python3
"""Makes tape.json beside this file: values and gradients in PyTorch, fp32 (CPU), of what tests/layers/tape.cpp records.

    pip install torch
    python3 make_tape.py

Each case has 21 rows: x, dy (the gradient of y) and the parameters, and the results y, dx and the gradients of the parameters.
"""
import json, pathlib
import torch
from torch.nn import functional as F

ROWS = 21
generator = torch.Generator().manual_seed(55)


def numbers(*shape):
    return torch.randn(*shape, generator=generator)


def listed(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def case(function, x=None, **parameters):
    x = (numbers(ROWS, 6) if x is None else x).requires_grad_()
    parameters = {name: value.requires_grad_() for name, value in parameters.items()}
    y = function(x, **parameters)
    dy = numbers(*y.shape)
    y.backward(dy)
    result = {"x": listed(x), "dy": listed(dy), "y": listed(y), "dx": listed(x.grad)}
    for name, value in parameters.items():
        result["param/" + name], result["grad/" + name] = listed(value), listed(value.grad)
    return result


def contrastive(x, log_scale):
    a, b = F.normalize(x[:, :3]), F.normalize(x[:, 3:])
    scores, own = log_scale.exp() * a @ b.T, torch.arange(len(x))
    return ((F.cross_entropy(scores, own, reduction="none") + F.cross_entropy(scores.T, own, reduction="none")) / 2)[:, None]


ties = torch.randint(-2, 3, (ROWS, 6), generator=generator).float()
cases = {
    "contrastive": case(contrastive, log_scale=torch.tensor([0.7])),
    "gated": case(lambda x, w1, w3, bias, w2: (F.silu(x @ w1.T + bias) * (x @ w3.T)) @ w2.T,
                  w1=numbers(10, 6), w3=numbers(10, 6), bias=numbers(10), w2=numbers(6, 10)),
    "norm": case(lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias), weight=numbers(6), bias=numbers(6)),
    "attention": case(lambda x: torch.cat([torch.softmax(part @ part.T, -1) @ part for part in x.split(7)])),
    "maximum": case(lambda x, other: torch.maximum(x, other) - torch.minimum(x, other) * x, x=ties.clone(), other=ties[0].clone()),
    "largest": case(lambda x: x.amax(1, keepdim=True), x=ties.clone()),
    "edges": case(lambda x: x.clamp(-1, 1) * F.gelu(x) + x.abs() + F.gelu(x, approximate="tanh") + F.relu(x), x=ties.clone()),
    "logarithms": case(lambda x: F.log_softmax(3 * x, 1) + torch.logsumexp(x, 1, keepdim=True) + (x * x + 1e-3).log()),
    "lookup": case(lambda x, table: x * table[torch.arange(ROWS) % 5] + (table * table).sum(0), table=numbers(5, 6)),
}
path = pathlib.Path(__file__).with_name("tape.json")
path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
