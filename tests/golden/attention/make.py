#!/usr/bin/env python3
"""Makes attention.safetensors and images.safetensors: inputs, parameters, outputs and gradients of layers, computed by PyTorch and
transformers in fp64 and stored in fp32. Names of tensors are CASE/x, dy, y, dx, param/NAME and grad/NAME, with the names and layouts of
lib/api. Usage: make.py (PyTorch 2.15, transformers 5.23)"""
import os

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import GPT2Config, LlamaConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

torch.set_default_dtype(torch.float64)
folder = os.path.dirname(os.path.abspath(__file__))
tensors = {}


def numbers(*shape):
    """Random numbers that fp32 represents."""
    return torch.randn(*shape).float().double()


def randomise(module):
    for name, p in module.named_parameters():
        norm = p.dim() == 1 and name.endswith("weight")
        p.data = numbers(*p.shape) * (p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3) + (1 if norm else 0)
        p.data = p.data.float().double()


def store(case, x, run, parameters, rows=None):
    """run(x) gives y. `parameters`: name -> (tensor, function to our layout)."""
    x = x.clone().requires_grad_()
    y = run(x)
    dy = numbers(*y.shape)
    y.backward(dy)
    put = lambda name, value: tensors.__setitem__(f"{case}/{name}", value.detach().float().contiguous())
    put("x", x), put("dy", dy), put("y", y), put("dx", x.grad)
    for name, (tensor, layout) in parameters.items():
        put("param/" + name, layout(tensor)), put("grad/" + name, layout(tensor.grad))


def same(t):
    return t


def parameters_of(module, layout=lambda name: same):
    return {name: (p, layout(name)) for name, p in module.named_parameters()}


def write(name):
    save_file(tensors, os.path.join(folder, name))
    tensors.clear()


# --- attention ---
def multi_head(case, width, heads, B, T, causal=False, padding=None):
    torch.manual_seed(len(case))
    module = nn.MultiheadAttention(width, heads, batch_first=True)
    randomise(module)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None

    def run(x):
        rows = x[..., :width]
        return module(rows, rows, rows, attn_mask=hidden, key_padding_mask=padding, need_weights=False)[0]

    x = numbers(B, T, width)
    if padding is not None:
        x = torch.cat([x, (~padding).double()[..., None]], -1)
    parameters = {}
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = slice(i * width, (i + 1) * width)
        parameters[part + ".weight"] = (module.in_proj_weight, lambda t, rows=rows: t[rows])
        parameters[part + ".bias"] = (module.in_proj_bias, lambda t, rows=rows: t[rows])
    parameters["o_proj.weight"] = (module.out_proj.weight, same)
    parameters["o_proj.bias"] = (module.out_proj.bias, same)
    store(case, x, run, parameters)


multi_head("all", 12, 3, 2, 5)
multi_head("all_long", 8, 2, 1, 70)
multi_head("causal", 12, 3, 2, 5, causal=True)
multi_head("causal_long", 8, 1, 1, 70, causal=True)
padding = torch.zeros(3, 6, dtype=torch.bool)
padding[0, 4:] = True
padding[2, :3] = True
multi_head("mask", 12, 2, 3, 6, padding=padding)
padding = torch.zeros(2, 6, dtype=torch.bool)
padding[1, 2:5] = True
multi_head("causal_mask", 12, 2, 2, 6, causal=True, padding=padding)


def llama(case, T, **sizes):
    torch.manual_seed(7)
    config = LlamaConfig(hidden_size=16, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **sizes)
    config._attn_implementation = "eager"
    block, rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
    randomise(block)
    hidden = torch.full((T, T), float("-inf")).triu(1)[None, None]

    def turns(x):  # in fp32, as for models in fp32
        cos, sin = rotary(x.float(), torch.arange(T)[None])
        return cos.double(), sin.double()

    def run_attention(x):
        return block.self_attn(x, position_embeddings=turns(x), attention_mask=hidden)[0]

    def run_block(x):
        y = block(x, attention_mask=hidden, position_embeddings=turns(x))
        return y[0] if isinstance(y, tuple) else y

    x = numbers(2, T, 16)
    store(case + "_attention", x, run_attention, parameters_of(block.self_attn))
    for p in block.parameters():
        p.grad = None
    store(case + "_block", x, run_block, parameters_of(block))


llama("llama", 9, head_dim=6)

torch.manual_seed(8)
config = GPT2Config(n_embd=12, n_head=3, n_inner=20, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0)
config._attn_implementation = "eager"
block = GPT2Block(config, layer_idx=0)
randomise(block)


def run_gpt2(x):
    hidden = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
    y = block(x, attention_mask=hidden)
    return y[0] if isinstance(y, tuple) else y


store("gpt2_block", numbers(2, 7, 12), run_gpt2, parameters_of(block))
write("attention.safetensors")


# --- images ---
def pixels(y):  # [N, C, H, W] -> [N, H * W * C]
    return y.movedim(1, -1).flatten(1)


def on_image(module, shape):  # of rows that are images, channels last
    return lambda x: pixels(module(x.view(-1, *shape).movedim(-1, 1)))


def convolution(case, height, width, channels, out, kernel, stride, padding):
    torch.manual_seed(3)
    module = nn.Conv2d(channels, out, kernel, stride, padding)
    randomise(module)
    store(case, numbers(3, height * width * channels), on_image(module, (height, width, channels)),
          {"weight": (module.weight, lambda t: t.permute(0, 2, 3, 1)), "bias": (module.bias, same)})


convolution("conv_same", 5, 6, 3, 4, 3, 1, 1)
convolution("conv_stride", 7, 6, 2, 3, 3, 2, 1)
convolution("conv_pixel", 4, 5, 4, 5, 1, 1, 0)
convolution("conv_patches", 8, 8, 3, 7, 4, 4, 0)
convolution("conv_wide_padding", 3, 4, 2, 3, 3, 2, 4)
convolution("conv_pixel_stride", 5, 5, 2, 3, 1, 2, 0)
torch.manual_seed(4)
module = nn.Conv1d(3, 4, 3, 2, 1)
randomise(module)
store("conv1d", numbers(3, 9 * 3), on_image(module, (9, 3)), {"weight": (module.weight, lambda t: t.permute(0, 2, 1)), "bias": (module.bias, same)})


def pooling(case, module, height, width, channels):
    torch.manual_seed(5)
    x = torch.relu(numbers(3, height * width * channels))  # many zeros are equal
    store(case, x, on_image(module, (height, width, channels)), {})


pooling("max", nn.MaxPool2d(2), 6, 4, 5)
pooling("max_overlap", nn.MaxPool2d(3, 2, 1), 7, 6, 3)
pooling("mean", nn.AvgPool2d(2), 6, 4, 5)
pooling("mean_overlap", nn.AvgPool2d(3, 2, 1), 7, 6, 3)
pooling("mean_all", nn.AdaptiveAvgPool2d(1), 3, 4, 5)
write("images.safetensors")
