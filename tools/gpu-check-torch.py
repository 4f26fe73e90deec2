#!/usr/bin/env python3
"""Updates of PyTorch's FSDP2 with torch.compile on one GPU, for tools/gpu-check: prints one JSON object.

Usage: gpu-check-torch.py gpt2|gpt3-xl|llama-3.1-8b BATCH TOKENS [--recompute]

The same models, random tokens and arithmetic as `fsdp-bench step --bf16`: fp32 parameters that are gathered and computed with in bf16,
gradients reduced in fp32, fused AdamW with fp32 moments, gradients clipped to a norm of 1.
"""
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

ARCHS = {  # vocabulary, positions, width, layers, heads, key/value heads, inner width; llama: RMSNorm, rotary
           # positions, SwiGLU, no biases
    "gpt2": dict(V=50257, P=1024, C=768, L=12, H=12, K=12, F=3072, llama=False),
    "gpt3-xl": dict(V=50257, P=2048, C=2048, L=24, H=32, K=32, F=8192, llama=False),
    "llama-3.1-8b": dict(V=128256, P=131072, C=4096, L=32, H=32, K=8, F=14336, llama=True),
}


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a, self.D = a, a["C"] // a["H"]
        bias = not a["llama"]
        norm = (lambda: nn.RMSNorm(a["C"], eps=1e-5)) if a["llama"] else (lambda: nn.LayerNorm(a["C"]))
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(a["C"], (a["H"] + 2 * a["K"]) * self.D, bias=bias)
        self.attention_out = nn.Linear(a["C"], a["C"], bias=bias)
        self.up = nn.Linear(a["C"], a["F"] * (2 if a["llama"] else 1), bias=bias)
        self.down = nn.Linear(a["F"], a["C"], bias=bias)

    def forward(self, x, cos, sin):
        a, (B, T, C) = self.a, x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, -1, self.D).transpose(1, 2).split([a["H"], a["K"], a["K"]], dim=1)
        if a["llama"]:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a["H"] != a["K"])
        x = x + self.attention_out(y.transpose(1, 2).reshape(B, T, C))
        h = self.up(self.norm2(x))
        if a["llama"]:
            gate, up = h.chunk(2, dim=-1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(h, approximate="tanh")
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, a, recompute):
        super().__init__()
        self.a, self.recompute = a, recompute
        self.tokens = nn.Embedding(a["V"], a["C"])
        self.positions = None if a["llama"] else nn.Embedding(a["P"], a["C"])
        self.blocks = nn.ModuleList(Block(a) for _ in range(a["L"]))
        self.norm = nn.RMSNorm(a["C"], eps=1e-5) if a["llama"] else nn.LayerNorm(a["C"])
        self.head = nn.Linear(a["C"], a["V"], bias=False)
        if not a["llama"]:
            self.head.weight = self.tokens.weight

    def forward(self, inputs, targets, cos, sin):
        x = self.tokens(inputs)
        if self.positions is not None:
            x = x + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if self.recompute else block(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def main():
    arch, B, T = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    a = ARCHS[arch]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{os.path.join(folder, 'meet')}", rank=0, world_size=1)
        torch.cuda.set_device(0)
        with torch.device("cuda"):
            model = Model(a, "--recompute" in sys.argv[4:])
            D = a["C"] // a["H"]
            angles = torch.arange(T)[:, None] * 500000.0 ** (-torch.arange(0, D, 2) / D)[None]
            cos, sin = (f(torch.cat([angles, angles], dim=-1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
            inputs, targets = torch.randint(a["V"], (B, T)), torch.randint(a["V"], (B, T))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        seconds = []
        for _ in range(15):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model(inputs, targets, cos, sin).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        step = statistics.median(seconds[5:])  # the first steps include compilation
        print(json.dumps({"arch": arch, "torch": torch.__version__, "device": torch.cuda.get_device_name(0), "ms": 1e3 * step,
                          "tokens_per_second": B * T / step, "peak_bytes": torch.cuda.max_memory_allocated()},
                         separators=(",", ":")))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
