"""Writes schedules.json: the factors of the learning rate after 1, 2, ... 41 steps by transformers.get_scheduler(). Made with transformers 5."""

import json
import math
import pathlib

import torch
import transformers

total, beyond = 37, 4
cases = {
    "constant_with_warmup": dict(warmup=5),
    "linear": dict(warmup=7),
    "linear without warm-up": dict(warmup=0),
    "linear by ratio": dict(ratio=0.13),
    "cosine": dict(warmup=7),
    "cosine_with_restarts": dict(warmup=7),
    "cosine_with_restarts of 3 cycles": dict(warmup=6, num_cycles=3),
    "cosine_with_min_lr": dict(ratio=0.1, min_lr_rate=0.1),
    "polynomial": dict(warmup=4, power=2.0, lr_end=0.05),
    "inverse_sqrt": dict(warmup=9),
}


def factors(name, warmup=None, ratio=None, **more):
    warmup = math.ceil(total * ratio) if warmup is None else warmup
    optimizer = torch.optim.SGD([torch.zeros(1, dtype=torch.float64, requires_grad=True)], lr=1.0)
    scheduler = transformers.get_scheduler(name.split()[0], optimizer, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=more)
    made = []
    for _ in range(total + beyond):
        optimizer.step()
        scheduler.step()
        made.append(scheduler.get_last_lr()[0])
    return made


here = pathlib.Path(__file__).parent
written = {name: dict(options, factors=factors(name, **options)) for name, options in cases.items()}
(here / "schedules.json").write_text(json.dumps(dict(total=total, schedules=written), indent=0) + "\n")
