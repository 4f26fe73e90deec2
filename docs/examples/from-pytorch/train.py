"""The program of main.cpp with PyTorch's FSDP2. docs/from-pytorch-script.md maps one to the other, line by line.

torchrun --nproc-per-node=2 train.py [FILE WITH THE INITIAL WEIGHTS, WRITTEN BY main.cpp]
"""
import os
import sys
from collections import OrderedDict

import h5py
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.gelu(self.up(self.norm(x))))


def batch_of(text, step, k):
    begin = ((2 * step + k) * dist.get_world_size() + dist.get_rank()) * 128 % (len(text) - 128)
    return text[begin:begin + 128].view(4, 32), text[begin + 1:begin + 129].view(4, 32)


def loss_of(model, text, step, k):
    tokens, labels = batch_of(text, step, k)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def report(what, loss):
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"{what}  loss {loss.item() / dist.get_world_size():.7f}", flush=True)


dist.init_process_group("gloo")
text = torch.frombuffer(bytearray(open("text.txt", "rb").read()), dtype=torch.uint8).long()
model = nn.Sequential(OrderedDict(
    embedding=nn.Embedding(256, 64),
    block0=Block(64),
    block1=Block(64),
    norm=nn.LayerNorm(64),
    head=nn.Linear(64, 256)))
if len(sys.argv) > 1:
    with h5py.File(sys.argv[1]) as file:
        model.load_state_dict({name: torch.from_numpy(file[name][:]) for name in model.state_dict()})
for layer in model:
    fully_shard(layer)
fully_shard(model)
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices}, {"params": vectors, "weight_decay": 0}],
    betas=(0.9, 0.95), weight_decay=0.1)
first = 0
if os.path.exists("checkpoint.pt"):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id="checkpoint.pt")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    first = state["step"]
for step in range(first, 20):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1, (step + 1) / 5)
    total = 0
    for k in range(2):
        model.set_requires_gradient_sync(k == 1)
        loss = loss_of(model, text, step, k) / 2
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    optimizer.zero_grad()
    report(f"step {step + 1}", total)
    if step % 10 == 9:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments, "step": step + 1}, checkpoint_id="checkpoint.pt")
with torch.no_grad():
    report("held out", loss_of(model, text, 1000, 0))
