#!/usr/bin/env python3
"""Writes batch_norm.json: losses, weights and running statistics of six updates of a residual network with two BatchNorms, in
PyTorch with the rows of all ranks in one process, as torch.nn.SyncBatchNorm computes them. tests/api/batch_norm.cpp trains the
same model at several ranks.

Usage: make_batch_norm.py > batch_norm.json"""
import json

import torch
from torch import nn
from torch.nn import functional as F

from exact import exact

torch.set_num_threads(1)
rows, inputs, width, outputs, micro_batches, updates = 12, 5, 6, 3, 2, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.bn = nn.Linear(width, 2 * width, bias=False), nn.BatchNorm1d(2 * width)
        self.down, self.bn2 = nn.Linear(2 * width, width, bias=False), nn.BatchNorm1d(width, momentum=0.25)

    def forward(self, x):
        return x + self.bn2(self.down(torch.tanh(self.bn(self.up(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(inputs, width), Block(), nn.Linear(width, outputs)
        with torch.no_grad():
            for seed, p in enumerate(self.parameters()):
                p.copy_(exact(p.numel(), seed).view(p.shape))

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


def main():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for update in range(updates):
        optimizer.zero_grad()
        total = 0
        for k in range(micro_batches):
            number = update * micro_batches + k
            x = exact(rows * inputs, 1000 + number).view(rows, inputs)
            loss = F.mse_loss(model(x), exact(rows * outputs, 2000 + number).view(rows, outputs)) / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
    model.eval()
    x = exact(rows * inputs, 1000).view(rows, inputs).requires_grad_()
    evaluated = F.mse_loss(model(x), exact(rows * outputs, 2000).view(rows, outputs))
    evaluated.backward()
    weights = {name: p.flatten().tolist() for name, p in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    print(json.dumps({"losses": losses, "weights": weights, "evaluated": evaluated.item(), "dx": x.grad.flatten().tolist()}))


if __name__ == "__main__":
    main()
