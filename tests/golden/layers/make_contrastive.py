#!/usr/bin/env python3
"""Writes contrastive.json: losses and weights of six updates of two small encoders with the loss of CLIP (Radford et al. 2021),
in PyTorch with the rows of all ranks in one process. tests/api/contrastive.cpp trains the same model at several ranks.

Usage: make_contrastive.py > contrastive.json"""
import json

import torch
from torch import nn
from torch.nn import functional as F

from exact import exact

torch.set_num_threads(1)
rows, left, right, width, micro_batches, updates = 12, 5, 3, 4, 2, 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(left, width), nn.Linear(right, width)
        self.log_scale = nn.Parameter(torch.zeros(1))
        with torch.no_grad():
            for seed, p in enumerate(self.parameters()):
                p.copy_(exact(p.numel(), seed).view(p.shape))

    def forward(self, x):
        a, b = self.left(x[:, :left]).tanh(), self.right(x[:, left:]).tanh()
        scale, own = self.log_scale.exp(), torch.arange(len(x))
        return (F.cross_entropy(scale * a @ b.T, own) + F.cross_entropy(scale * b @ a.T, own)) / 2


def main():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for update in range(updates):
        optimizer.zero_grad()
        total = 0
        for k in range(micro_batches):
            x = exact(rows * (left + right), 1000 + update * micro_batches + k).view(rows, left + right)
            loss = model(x) / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
    names = {"log_scale": "loss.log_scale"}  # those of the program in the test
    weights = {names.get(name, "towers." + name.replace(".", ".linear.")): p.flatten().tolist() for name, p in model.named_parameters()}
    print(json.dumps({"losses": losses, "weights": weights}))


if __name__ == "__main__":
    main()
