"""PyTorch twins of the programs in docs/examples/models.

twins.py NAME FOLDER [SAVE]: reads the initial parameters that `NAME FOLDER` wrote (FOLDER/initial.h5), trains the same model on the same
data, and prints a loss per step. With SAVE, writes them to NAME.txt next to this file. The programs print the same losses to 1e-5.
"""
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


MODELS = {}


if __name__ == "__main__":
    name, folder = sys.argv[1:3]
    losses = MODELS[name](parameters_of(folder))
    for loss in losses:
        print(f"{loss:.9g}")
    if len(sys.argv) > 3:
        (pathlib.Path(__file__).parent / f"{name}.txt").write_text("".join(f"{loss:.9g}\n" for loss in losses))
