#!/usr/bin/env python3
"""Writes towers.json: losses and weights of six updates of two small models with several inputs, in PyTorch with the rows of all
ranks in one process. `classifier` has three towers (numbers; tokens with attention; numbers without layers) and layers after
them, `clip` two towers and the loss of CLIP (Radford et al. 2021). tests/api/towers.cpp trains the same models at several ranks.

Usage: make_towers.py > towers.json"""
import json
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from exact import exact

torch.set_num_threads(1)
rows, length, vocabulary, classes, micro_batches, updates = 12, 7, 11, 5, 2, 6


def integers(n, seed, limit):
    return torch.tensor([(i * 7919 + seed * 104729) % 1009 % limit for i in range(n)])


class Attention(nn.Module):
    """Causal, with two heads of two numbers, added to its input."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, 2)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Unit(nn.Module):
    def forward(self, x):
        return x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt()


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def encoder(i, h, o):
    return nn.Sequential(OrderedDict([("in", nn.Linear(i, h)), ("gelu", nn.GELU("tanh")), ("norm", nn.LayerNorm(h)),
                                      ("out", nn.Linear(h, o)), ("unit", Unit())]))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(OrderedDict([("in", nn.Linear(5, 4)), ("tanh", nn.Tanh()), ("out", nn.Linear(4, 3))]))
        self.text = nn.Sequential(OrderedDict([("embedding", nn.Embedding(vocabulary, 4)), ("attention", Attention()),
                                               ("fold", nn.Flatten()), ("out", nn.Linear(4 * length, 3))]))
        self.mix = nn.Linear(3 + 3 + 6, 6)
        self.head = nn.Linear(6, classes)

    def forward(self, seed):
        pixels, words = exact(rows * 5, seed).view(rows, 5), integers(rows * length, seed + 1, vocabulary).view(rows, length)
        more = exact(rows * 6, seed + 2).view(rows, 6)
        x = torch.cat([self.image(pixels), self.text(words), more], -1)
        return F.cross_entropy(self.head(self.mix(x).tanh()), integers(rows, seed + 3, classes))


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(OrderedDict([("body", encoder(5, 4, 3))]))
        self.text = nn.Sequential(OrderedDict([("embedding", nn.Embedding(vocabulary, 4)), ("mean", Mean()),
                                               ("body", encoder(4, 6, 3))]))
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, seed):
        a = self.image(exact(rows * 5, seed).view(rows, 5))
        b = self.text(integers(rows * length, seed + 1, vocabulary).view(rows, length))
        scale, own = self.log_scale.exp(), torch.arange(rows)
        return (F.cross_entropy(scale * a @ b.T, own) + F.cross_entropy(scale * b @ a.T, own)) / 2


def train(model):
    with torch.no_grad():
        for seed, (_, p) in enumerate(sorted(model.named_parameters())):
            p.copy_(exact(p.numel(), seed).view(p.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for update in range(updates):
        optimizer.zero_grad()
        total = 0
        for k in range(micro_batches):
            loss = model(1000 + 10 * (update * micro_batches + k)) / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
    names = {"log_scale": "loss.log_scale"}  # that of the program in the test
    return {"losses": losses, "weights": {names.get(name, name): p.flatten().tolist() for name, p in model.named_parameters()}}


def main():
    print(json.dumps({"classifier": train(Classifier()), "clip": train(Clip())}))


if __name__ == "__main__":
    main()
