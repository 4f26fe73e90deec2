#!/usr/bin/env python3
"""Makes input_gradients.json beside this file, by PyTorch in fp32 (CPU), for tests/api/outputs.cpp: a model's parameters, a batch, the mean
loss, outputs of inner layers, and the gradient of the loss with respect to the inputs.

    pip install torch
    python3 make.py
"""
import json, pathlib
from collections import OrderedDict
import torch
from torch import nn

torch.manual_seed(55)
ROWS, WIDTH, CLASSES = 13, 5, 3


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def block():
    return Residual(OrderedDict(norm=nn.LayerNorm(7), up=nn.Linear(7, 11), silu=nn.SiLU(), down=nn.Linear(11, 7)))


model = nn.Sequential(OrderedDict([("in", nn.Linear(WIDTH, 7)), ("act", nn.GELU("tanh")), ("blocks", nn.Sequential(block(), block())), ("head", nn.Linear(7, CLASSES))]))
for parameter in model.parameters():
    parameter.data += 0.1 * torch.randn_like(parameter)
seen = {}
for name, module in model.named_modules():
    if name.startswith("blocks."):
        module.register_forward_hook(lambda module, inputs, output, name=name: seen.update({name: output}))


def listed(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


x = torch.randn(ROWS, WIDTH, requires_grad=True)
labels = [(2 * r + r * r // 3) % CLASSES if r != 4 else -1 for r in range(ROWS)]  # row 4 does not count
loss = nn.functional.cross_entropy(model(x), torch.tensor(labels), weight=torch.tensor([0.5, 2.0, 1.25]), ignore_index=-1)
loss.backward()
text = {"torch": torch.__version__, "labels": labels, "loss": listed(loss)[0], "x": listed(x), "dx": listed(x.grad),
        "outputs": {name: listed(value) for name, value in seen.items() if name in ("blocks.0", "blocks.1.norm", "blocks.1.silu")},
        "parameters": {name: listed(value) for name, value in model.named_parameters()}}
with open(pathlib.Path(__file__).parent / "input_gradients.json", "w") as file:
    file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in text.items()) + "\n}\n")
