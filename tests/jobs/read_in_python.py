"""Reads with h5py, PyTorch and transformers what python.cpp wrote into the working folder, as the document DOC says.

Usage: read_in_python.py --probe | DOC. Exit code 77: this Python lacks a package.
"""

import importlib.util
import re
import sys

needed = ["torch", "transformers", "safetensors", "h5py", "numpy"]
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f"{sys.executable} has no {', '.join(missing)}")
    sys.exit(77)
if sys.argv[1] == "--probe":
    sys.exit(0)

import json
import pathlib

import numpy
import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def sequences(run):
    """Inputs and targets [12, T] of each update of a golden run, from 1 on; the data starts again after its end."""
    options = json.loads((run / "run.json").read_text())
    length = options["tokens_per_sample"]
    tokens = numpy.fromfile(run / "train.bin", dtype=numpy.uint16)[512:].astype(numpy.int64)
    all_of_them = (len(tokens) - 1) // length
    update = 0
    while True:
        picked = [(12 * update + i) % all_of_them * length for i in range(12)]
        yield tuple(torch.from_numpy(numpy.stack([tokens[k + d : k + d + length] for k in picked])) for d in (0, 1))
        update += 1


# Every consolidated folder has all expected keys and no others, and gives the logits of fsdp.
for folder in sorted(path.parent for path in pathlib.Path().glob("*/logits.bin")):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{folder}: {kind}: {info[kind]}"
    tokens = numpy.fromfile(folder / "tokens.bin", dtype=numpy.int32).astype(numpy.int64)
    ours = torch.from_numpy(numpy.fromfile(folder / "logits.bin", dtype=numpy.float32)).reshape(len(tokens), -1)
    with torch.no_grad():
        theirs = model.float()(torch.from_numpy(tokens)[None]).logits[0]
    assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
    apart = (theirs - ours).abs().max().item()
    print(f"{folder}: {tuple(ours.shape)} logits of at most {ours.abs().max():.3g}, apart at most {apart:.2g}")
    assert apart < 1e-4

# transformers finds the tokenizer in a consolidated folder, and gives the ids of fsdp.
for folder in sorted(path.parent for path in pathlib.Path().glob("*/ids.bin")):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = numpy.fromfile(folder / "ids.bin", dtype=numpy.int32).tolist()
    assert tokenizer(open("text.txt").read())["input_ids"] == ids
    assert tokenizer.eos_token_id == transformers.AutoConfig.from_pretrained(folder).eos_token_id == 0
    print(f"{folder}: {len(ids)} ids")

# Runs the snippets of the document in order.
snippets = re.findall(r"^```python\n(.*?)^```$", pathlib.Path(sys.argv[1]).read_text(), re.DOTALL | re.MULTILINE)
names = {}
states = []
for snippet in snippets:
    exec(snippet, names)
    if "state_dict" in names:
        states.append(names.pop("state_dict"))
assert len(snippets) == 4 and len(states) == 2, (len(snippets), len(states))
# The tied weight is stored once.
expected = {name: data for name, data in names["model"].state_dict().items() if name != "lm_head.weight"}
for state in states:
    assert state.keys() == expected.keys(), state.keys() ^ expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
assert names["update"] == 100
assert (names["table"] == expected["transformer.wte.weight"].numpy()).all() and names["rows"].shape == (2, 48)
optimizer = names["optimizer"]
assert len(optimizer.state) == len(expected)
assert all(torch.equal(optimizer.state[p]["exp_avg"], names["exp_avg"][name]) for name, p in names["model"].named_parameters())

# With the loaded optimizer state, PyTorch continues training with the losses of fsdp-train.
model = names["model"]
model.train()
ours = [json.loads(line) for line in open("train.jsonl")]
ours = {line["step"]: line["loss"] for line in ours if line["type"] == "train"}
for update, (inputs, targets) in zip(range(1, 105), sequences(pathlib.Path(sys.argv[2]))):
    if update <= 100:
        continue
    loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    print(f"update {update}: loss {loss.item():.6f} here, {ours[update]:.6f} there")
    assert abs(loss.item() - ours[update]) < 1e-4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
