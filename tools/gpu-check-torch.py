#!/usr/bin/env python3
"""Updates of PyTorch's FSDP2 with torch.compile, for tools/gpu-check: prints one JSON object. torchrun starts it, one process per GPU.

The same models, random tokens and arithmetic as `fsdp-bench step --bf16`: fp32 parameters that are gathered and computed with in bf16,
gradients reduced in fp32, fused AdamW with fp32 moments, gradients clipped to a norm of 1.

With --curve, the ranks read tokens in the order of fsdp-train, and the losses of all updates are written, with the model and the tokens.
Without a GPU it computes on the CPU and does not compile; that is for tests of this script.
"""
import argparse
import array
import ctypes
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

ARCHS = {  # vocabulary, positions, width, layers, heads, key/value heads, inner width; llama: RMSNorm, rotary
           # positions, SwiGLU, no biases
    "gpt2": dict(V=50257, P=1024, C=768, L=12, H=12, K=12, F=3072, llama=False),
    "gpt3-xl": dict(V=50264, P=2048, C=2048, L=24, H=32, K=32, F=8192, llama=False),
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


def loss_of_logits(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Model(nn.Module):
    def __init__(self, a, recompute):
        super().__init__()
        self.a, self.recompute, self.loss = a, recompute, loss_of_logits
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
        return self.loss(self.head(self.norm(x)), targets)


def write_gpt2(model, a, folder):
    """Writes the model as a Hugging Face folder (safetensors: the length of a JSON header, the header, the numbers)."""
    tensors = {"wte.weight": model.tokens.weight, "wpe.weight": model.positions.weight, "ln_f.weight": model.norm.weight,
               "ln_f.bias": model.norm.bias}
    for i, block in enumerate(model.blocks):
        for name, module in (("ln_1", block.norm1), ("ln_2", block.norm2), ("attn.c_attn", block.qkv),
                             ("attn.c_proj", block.attention_out), ("mlp.c_fc", block.up), ("mlp.c_proj", block.down)):
            tensors[f"h.{i}.{name}.weight"] = module.weight.T if module.weight.dim() == 2 else module.weight
            tensors[f"h.{i}.{name}.bias"] = module.bias
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        numbers = ctypes.string_at(tensor.data_ptr(), 4 * tensor.numel())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "gpt2", "vocab_size": a["V"], "n_positions": a["P"], "n_embd": a["C"], "n_layer": a["L"],
                   "n_head": a["H"], "n_inner": a["F"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}, file)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text + data)


def write_tokens(tokens, path):
    """Writes a token file in llm.c's version 1 format."""
    with open(path, "wb") as file:
        file.write(array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tobytes())
        file.write(array.array("H", tokens).tobytes())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("arch", choices=ARCHS)
    parser.add_argument("batch", type=int, help="sequences of each GPU")
    parser.add_argument("tokens", type=int, help="tokens of a sequence")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--layers", type=int, help="instead of the model's number")
    parser.add_argument("--updates", type=int, default=15)
    parser.add_argument("--curve", metavar="DIR", help="write model, tokens.bin and torch.txt, the losses, into this folder")
    options = parser.parse_args()
    a, B, T = dict(ARCHS[options.arch]), options.batch, options.tokens
    if options.layers:
        a["L"] = options.layers
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    with device:
        model = Model(a, options.recompute)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        D = a["C"] // a["H"]
        angles = torch.arange(T)[:, None] * 500000.0 ** (-torch.arange(0, D, 2) / D)[None]
        dtype = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[options.precision])
        cos, sin = (f(torch.cat([angles, angles], dim=-1)).to(dtype) for f in (torch.cos, torch.sin))
        q = torch.empty(B, a["H"], T, D, dtype=dtype)
        k = q[:, : a["K"]]
        backend = SDPBackend(torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=a["H"] != a["K"])).name
        del q, k
    # Small numbers are more frequent, so that there is something to learn. fsdp-train reads sequence after sequence: an update's
    # sequences follow each other, and are distributed over the ranks.
    generator = torch.Generator().manual_seed(2)
    count = (options.updates if options.curve else 1) * ranks * B * T + 1
    tokens = (a["V"] * torch.rand(count, generator=generator, dtype=torch.float64) ** 4).long()
    if options.curve and rank == 0:
        write_gpt2(model, a, os.path.join(options.curve, "model"))
        write_tokens(tokens.tolist(), os.path.join(options.curve, "tokens.bin"))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        if gpu:
            block.compile()
        fully_shard(block, mp_policy=policy)
    if gpu:
        model.loss = torch.compile(loss_of_logits)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=True)
    seconds, losses = [], []
    for update in range(options.updates):
        begin = ((update if options.curve else 0) * ranks + rank) * B * T
        inputs, targets = (tokens[begin + i : begin + i + B * T].view(B, T).to(device) for i in (0, 1))
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        loss = model(inputs, targets, cos, sin)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        if options.curve:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / ranks)
    if options.curve and rank == 0:
        with open(os.path.join(options.curve, "torch.txt"), "w") as file:
            file.writelines(f"{loss!r}\n" for loss in losses)
    elif rank == 0:
        step = statistics.median(seconds[5:])  # the first steps include compilation
        print(json.dumps({"arch": options.arch, "torch": torch.__version__, "ranks": ranks,
                          "device": torch.cuda.get_device_name(0) if gpu else "CPU", "attention": backend, "ms": 1e3 * step,
                          "tokens_per_second": ranks * B * T / step,
                          "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None}, separators=(",", ":")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
