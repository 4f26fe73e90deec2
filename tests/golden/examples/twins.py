"""PyTorch twins of the programs in docs/examples/models.

twins.py NAME FOLDER [SAVE]: reads the initial parameters that `NAME FOLDER` wrote (FOLDER/initial.h5), trains the same model on the same
data, and prints a loss per step. With SAVE, writes them to NAME.txt next to this file. The programs print the same losses to 1e-5.
"""
import math
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(0)  # nothing random remains, but dropout of a mistake would be seen


def parameters_of(folder):
    """The parameters by name, as fp32 leaves."""
    found = {}

    def take(name, item):
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
            found[name.strip("/").split("/")[-1]] = torch.tensor(item[()], dtype=torch.float32, requires_grad=True)

    with h5py.File(pathlib.Path(folder) / "initial.h5") as file:
        file.visititems(take)
    return found


def train(parameters, loss_of, steps, learning_rate):
    """AdamW as in FsdpOptions' defaults: vectors have no decay."""
    decayed = [p for p in parameters.values() if p.dim() > 1]
    others = [p for p in parameters.values() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
                                  lr=learning_rate, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = loss_of(parameters, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- character_transformer --------------------------------------------------------------------------------------------------------

def character_transformer(parameters):
    text = ("the ranks of a job share one model. each rank keeps a part of every layer, gathers the layer before it computes, and gives "
            "it back afterwards. the gradients of all ranks are summed, and each rank updates its own part. so a model may be larger "
            "than the memory of any rank, and its losses are those of one rank alone. ")
    alphabet = " .,abcdefghijklmnopqrstuvwxyz"
    length, width, heads, layers, examples = 32, 48, 4, 2, 12
    functional = torch.nn.functional

    def loss_of(p, step):
        places = torch.tensor([[((step - 1) * examples + e) * 37 + t for t in range(length + 1)] for e in range(examples)])
        tokens = torch.tensor([[alphabet.index(text[place % len(text)]) for place in row] for row in places.tolist()])
        x = p["transformer.wte.weight"][tokens[:, :-1]] + p["transformer.wpe.weight"]

        def norm(name, x):
            return functional.layer_norm(x, (width,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

        for layer in range(layers):
            block = f"transformer.h.{layer}."

            def conv1d(name, x):
                return x @ p[f"{block}{name}.weight"] + p[f"{block}{name}.bias"]

            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in conv1d("attn.c_attn", norm(block + "ln_1", x)).split(width, -1))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + conv1d("attn.c_proj", attended)
            x = x + conv1d("mlp.c_proj", functional.gelu(conv1d("mlp.c_fc", norm(block + "ln_2", x)), approximate="tanh"))
        logits = norm("transformer.ln_f", x) @ p["transformer.wte.weight"].T
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return train(parameters, loss_of, 10, 4e-3)


# --- autoencoder ------------------------------------------------------------------------------------------------------------------

def uniform(n):
    mask = 2**64 - 1
    n = (n + 0x9E3779B97F4A7C15) & mask
    n = ((n ^ (n >> 30)) * 0xBF58476D1CE4E5B9) & mask
    n = ((n ^ (n >> 27)) * 0x94D049BB133111EB) & mask
    return ((n ^ (n >> 31)) >> 11) * 2.0**-53


def autoencoder(parameters):
    side, code, examples = 8, 3, 12
    functional = torch.nn.functional

    def image(number):
        x, y, radius = 1 + 5 * uniform(3 * number + 1), 1 + 5 * uniform(3 * number + 2), 1 + 2 * uniform(3 * number + 3)
        return [float((i % side - x) ** 2 + (i // side - y) ** 2 < radius**2) for i in range(side * side)]

    def noise(step):
        numbers = [2 * ((step * examples + r) * code + i) for r in range(examples) for i in range(code)]
        values = [math.sqrt(-2 * math.log(1 - uniform(n))) * math.cos(2 * math.pi * uniform(n + 1)) for n in numbers]
        return torch.tensor(values).view(examples, code)

    def loss_of(p, step):
        def linear(name, x):
            return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

        images = torch.tensor([image((step - 1) * examples + e) for e in range(examples)])
        seen = torch.tanh(linear("encoder.in", images))
        mean, log_variance = linear("code.mean", seen), linear("code.log_variance", seen)
        z = mean + torch.exp(log_variance / 2) * noise(step)
        logits = linear("decoder.out", torch.tanh(linear("decoder.in", z)))
        of_pixels = functional.binary_cross_entropy_with_logits(logits, images, reduction="sum")
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (of_pixels + divergence) / examples

    return train(parameters, loss_of, 10, 1e-2)


# --- vision_transformer and residual_network ----------------------------------------------------------------------------------

def hash_of(i):
    """The integer hash of both programs, 24 bits."""
    i = np.atleast_1d(np.asarray(i, dtype=np.uint32))
    for _ in range(3):
        i = (i ^ (i >> np.uint32(15))) * np.uint32(2654435761)
    return i >> np.uint32(8)


def noise(i):
    return hash_of(i).astype(np.float32) / np.float32(2**23) - np.float32(1)


def stripes(n):
    """Image n of vision_transformer, [16, 16, 3]."""
    direction, shift, seed = n % 4, n // 4 % 6, 1000 * n
    y, x, channel = np.meshgrid(np.arange(16), np.arange(16), np.arange(3), indexing="ij")
    bright = ([x, y, x + y, x + 16 - y][direction] + shift) // 3 % 2
    colour = np.where(bright, np.float32(0.5), np.float32(-0.5)) + np.float32(0.5) * noise(seed + 2 * channel + bright)
    return colour + np.float32(0.25) * noise(seed + 10 + np.arange(768).reshape(16, 16, 3))


def shape(n):
    """Image n of residual_network, [16, 16, 1]."""
    kind, seed = n % 4, 1000 * n
    size = 3 + int(hash_of(seed)[0]) % 2
    centre_x, centre_y = (size + int(hash_of(seed + i)[0]) % (16 - 2 * size) for i in (1, 2))
    y, x = np.meshgrid(abs(np.arange(16) - centre_y), abs(np.arange(16) - centre_x), indexing="ij")
    square = x * x + y * y
    disc, hole = square <= size**2 + 1, square <= (size - 2) ** 2 + 1
    near = np.maximum(x, y) <= size
    bright = [disc, disc & ~hole, near & (x == y), near & ((x == 0) | (y == 0))][kind]
    pixels = np.where(bright, np.float32(1), np.float32(-1))
    return (pixels + hash_of(seed + 3 + np.arange(256)).reshape(16, 16).astype(np.float32) / np.float32(2**25))[..., None]


def images(draw, step):
    """The 48 images of a step, [48, channels, height, width], and their labels. Both programs have four classes in turn."""
    numbers = range(48 * (step - 1), 48 * step)
    return torch.tensor(np.stack([draw(n) for n in numbers])).permute(0, 3, 1, 2), torch.tensor([n % 4 for n in numbers])


def convolution(p, name, x, **options):
    return F.conv2d(x, p[f"{name}.weight"].permute(0, 3, 1, 2), p.get(f"{name}.bias"), **options)


def layer_norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])


def transformer_block(p, name, x):
    """A block of GPT-2 without a causal mask, with 4 heads."""
    linear = lambda layer, x: x @ p[f"{name}.{layer}.weight"] + p[f"{name}.{layer}.bias"]
    q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2)
               for part in linear("attn.c_attn", layer_norm(p, f"{name}.ln_1", x)).chunk(3, -1))
    x = x + linear("attn.c_proj", F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
    return x + linear("mlp.c_proj", F.gelu(linear("mlp.c_fc", layer_norm(p, f"{name}.ln_2", x)), approximate="tanh"))


def vision_transformer(parameters):
    def loss_of(p, step):
        x, labels = images(stripes, step)
        x = convolution(p, "patches", x, stride=4).flatten(2).transpose(1, 2) + p["position.weight"]
        for i in range(3):
            x = transformer_block(p, f"blocks.{i}", x)
        return F.cross_entropy(F.linear(layer_norm(p, "norm", x.mean(1)), p["head.weight"], p["head.bias"]), labels)

    return train(parameters, loss_of, 20, 1e-3)


def residual_network(parameters):
    def norm_gelu(p, name, x):
        return F.gelu(layer_norm(p, f"{name}.norm", x.permute(0, 2, 3, 1)), approximate="tanh").permute(0, 3, 1, 2)

    def block(p, name, x):
        y = convolution(p, f"{name}.conv1", norm_gelu(p, f"{name}.act1", x), padding=1)
        return x + convolution(p, f"{name}.conv2", norm_gelu(p, f"{name}.act2", y), padding=1)

    def loss_of(p, step):
        x, labels = images(shape, step)
        x = convolution(p, "stem", x, padding=1)
        for i in range(2):
            x = block(p, f"stage1.{i}", x)
        x = convolution(p, "down", x, stride=2, padding=1)
        for i in range(2):
            x = block(p, f"stage2.{i}", x)
        x = norm_gelu(p, "act", x).mean((2, 3))
        return F.cross_entropy(F.linear(layer_norm(p, "norm", x), p["head.weight"], p["head.bias"]), labels)

    return train(parameters, loss_of, 20, 3e-3)


MODELS = {"character_transformer": character_transformer, "autoencoder": autoencoder, "vision_transformer": vision_transformer,
          "residual_network": residual_network}


if __name__ == "__main__":
    name, folder = sys.argv[1:3]
    losses = MODELS[name](parameters_of(folder))
    for loss in losses:
        print(f"{loss:.9g}")
    if len(sys.argv) > 3:
        (pathlib.Path(__file__).parent / f"{name}.txt").write_text("".join(f"{loss:.9g}\n" for loss in losses))
