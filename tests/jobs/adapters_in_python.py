"""Compares adapters (LoRA) with PEFT, with models that adapters.cpp trains in the working folder.

Usage: adapters_in_python.py --probe | make | check. Exit code 77: this Python lacks a package.
  make   writes the models llama and gpt2, and adapters of PEFT for them, llama-start and gpt2-start
  check  trains these adapters by PEFT and PyTorch as the jobs NAME-1 and NAME-3 did, and compares losses and weights; loads
         NAME-peft by PEFT and NAME-merged by transformers, and compares both with PEFT's merge
"""

import importlib.util
import json
import pathlib
import sys

needed = ["torch", "transformers", "safetensors", "peft", "numpy"]
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f"{sys.executable} has no {', '.join(missing)}")
    sys.exit(77)
if sys.argv[1] == "--probe":
    sys.exit(0)

import numpy
import peft
import safetensors.torch
import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def make(family):
    torch.manual_seed(3)
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=48, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.1)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"]
        lora = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, use_rslora=True)
    else:
        config = transformers.GPT2Config(
            vocab_size=256, n_embd=48, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            bos_token_id=0, eos_token_id=0, initializer_range=0.1)
        lora = peft.LoraConfig(r=3, lora_alpha=16, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(family)
    lora.task_type = "CAUSAL_LM"
    peft.get_peft_model(model, lora).save_pretrained(f"{family}-start")


def tokens_of(path):
    return torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8).astype(numpy.int64))


def loss_of(model, inputs, targets):
    logits = model(input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def train(name, run):
    """Updates of 6 sequences of 32 tokens in fp64, AdamW with the defaults of PyTorch except rate 1e-2 and no decay."""
    lines = [json.loads(line) for line in open(f"{run}.jsonl")]
    losses = [line["loss"] for line in lines if line["type"] == "train"]
    base = transformers.AutoModelForCausalLM.from_pretrained(name)
    model = peft.PeftModel.from_pretrained(base, f"{name}-start", is_trainable=True).double()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-2, betas=(0.9, 0.98), eps=1e-3, weight_decay=0)
    tokens = tokens_of("text.txt")
    worst = 0
    for update, wanted in enumerate(losses):
        begins = [(6 * update + i) * 32 for i in range(6)]
        inputs, targets = (torch.stack([tokens[b + d : b + d + 32] for b in begins]) for d in (0, 1))
        loss = loss_of(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(loss.item() - wanted) / wanted)
    mine = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    theirs = safetensors.torch.load_file(f"{run}-peft/adapter_model.safetensors")
    assert mine.keys() == theirs.keys(), (sorted(mine)[:3], sorted(theirs)[:3])
    apart = max((mine[key] - theirs[key]).abs().max().item() for key in mine)
    print(f"{len(losses)} updates: losses differ by {worst:.1e} of them, adapter weights by {apart:.1e}")
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.3
    assert worst < 1e-6 and apart < 2e-5  # the losses of PEFT in fp32 differ by up to 2e-6


def load(name):
    base = transformers.AutoModelForCausalLM.from_pretrained(name)
    inputs = tokens_of("text.txt")[:96].reshape(3, 32)
    plain = base(input_ids=inputs).logits
    adapted = peft.PeftModel.from_pretrained(base, f"{name}-peft")
    logits = adapted(input_ids=inputs).logits
    merged = transformers.AutoModelForCausalLM.from_pretrained(f"{name}-merged")(input_ids=inputs).logits
    assert (logits - plain).abs().max() > 0.1
    assert (logits - merged).abs().max() < 1e-4, (logits - merged).abs().max()
    tokens = tokens_of("text.txt")
    pieces = [tokens[b : b + 33] for b in range(0, len(tokens) - 1, 32)]
    sums = [loss_of(adapted, piece[None, :-1], piece[None, 1:]).item() * (len(piece) - 1) for piece in pieces]
    loss = sum(sums) / (len(tokens) - 1)
    wanted = json.loads(pathlib.Path(f"{name}-evaluated.json").read_text())["loss"]
    assert abs(loss - wanted) < 1e-6 * wanted + 1e-6, (loss, wanted)
    mine = adapted.merge_and_unload().state_dict()
    theirs = safetensors.torch.load_file(f"{name}-merged/model.safetensors")
    for key in theirs:
        assert (mine[key] - theirs[key]).abs().max() < 1e-6, key


for family in ("llama", "gpt2"):
    if sys.argv[1] == "make":
        make(family)
    else:
        for ranks in (1, 3):
            train(family, f"{family}-{ranks}")
        with torch.no_grad():
            load(family)
