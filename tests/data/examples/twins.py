"""PyTorch twins of the programs in docs/examples/models.

twins.py NAME FOLDER [SAVE]: reads the initial parameters that `NAME FOLDER` wrote (FOLDER/initial.h5), trains the same model on the same
data, and prints a loss per step. With SAVE, writes them to NAME.txt next to this file. The programs print the same losses to 1e-5.
"""
import math
import pathlib
import sys

import h5py
import torch

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


MODELS = {"character_transformer": character_transformer, "autoencoder": autoencoder}


if __name__ == "__main__":
    name, folder = sys.argv[1:3]
    losses = MODELS[name](parameters_of(folder))
    for loss in losses:
        print(f"{loss:.9g}")
    if len(sys.argv) > 3:
        (pathlib.Path(__file__).parent / f"{name}.txt").write_text("".join(f"{loss:.9g}\n" for loss in losses))
