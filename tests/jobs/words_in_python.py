"""Compares new tokens, and adapters of more than projections, with transformers and PEFT.

Usage: words_in_python.py --probe | make | check. Exit code 77: this Python lacks a package.
  make   writes the models tied and untied with a tokenizer, text.txt, words.txt, and adapters of PEFT: NAME-start for each of
         `starts`, over the model NAME-base
  check  compares the tokenizer and the rows of grown-tied and grown-untied with those of transformers; trains the adapters by
         PEFT as the jobs NAME did, and compares losses, weights, and the merged model; loads words-peft by PEFT
"""

import importlib.util
import json
import pathlib
import shutil
import sys

needed = ["torch", "transformers", "tokenizers", "safetensors", "peft", "numpy"]
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f"{sys.executable} has no {', '.join(missing)}")
    sys.exit(77)
if sys.argv[1] == "--probe":
    sys.exit(0)

import peft
import safetensors.torch
import tokenizers
import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

words, special = ["frobnicate", "quux"], ["<new>"]
line = "In the beginning God <new> created frobnicate heaven, unquuxed and the quux earth<new>.\n"
# Model, and what LoraConfig has besides r and target_modules.
starts = {
    "tokens": ("tied", dict(trainable_token_indices=[302, 7, 300, 8])),
    "patterns": ("untied", dict(trainable_token_indices={"embed_tokens": [301, 302], "lm_head": [9, 301]},
                                rank_pattern={"layers.1.self_attn.q_proj": 4, "k_.*": 1}, alpha_pattern={"down_proj": 3},
                                layers_to_transform=[1], layers_pattern="layers")),
    # The loss has two tables of rows, of which an adapter changes one: nothing is merged.
    "tables-tied": ("tied", dict(target_modules=["q_proj", "embed_tokens", "lm_head"], rank_pattern={"lm_head": 3})),
    "whole": ("untied", dict(modules_to_save=["embed_tokens", "lm_head", "norm"])),
    "whole-tied": ("tied", dict(modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
}


def load(name):
    return transformers.AutoModelForCausalLM.from_pretrained(name)


def make():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(["In the beginning God created the heaven, and the earth was without form.\n"] * 3, tokenizers.trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False))
    bpe.add_tokens([f"filler{i}" for i in range(300 - bpe.get_vocab_size())])  # so that some tokens are added ones already
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, bos_token=end)
    assert len(tokenizer) == 300
    for tied in (True, False):
        torch.manual_seed(3)
        name = "tied" if tied else "untied"
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=300, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=3, max_position_embeddings=128, tie_word_embeddings=tied, initializer_range=0.1,
            bos_token_id=0, eos_token_id=0))
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
        model.resize_token_embeddings(303)
        model.save_pretrained(f"{name}-resized")
        grown(name).save_pretrained(f"{name}-resized")
    for name, (base, more) in starts.items():
        shutil.copytree(f"{base}-resized", f"{name}-base")
        targets = ["q_proj", "k_proj", "down_proj"]
        lora = peft.LoraConfig(**(dict(r=2, lora_alpha=5, target_modules=targets, task_type="CAUSAL_LM") | more))
        peft.get_peft_model(load(f"{name}-base"), lora).save_pretrained(f"{name}-start")
    pathlib.Path("text.txt").write_text(line * 40)
    pathlib.Path("words.txt").write_text("\n".join(words) + "\n\n")


def grown(name):
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    tokenizer.add_tokens(words)
    tokenizer.add_tokens(special, special_tokens=True)
    return tokenizer


def check_grown(name, padded):
    old, new = transformers.AutoTokenizer.from_pretrained(name), grown(name)
    mine = transformers.AutoTokenizer.from_pretrained(f"grown-{name}")
    ids = new(line * 3).input_ids
    assert mine(line * 3).input_ids == ids and {300, 301, 302} < set(ids), (mine(line).input_ids, new(line).input_ids)
    for skip in (True, False):
        assert mine.decode(ids, skip_special_tokens=skip) == new.decode(ids, skip_special_tokens=skip)
    assert mine.get_vocab() == new.get_vocab()
    before, after = load(name), load(f"grown-{name}")
    assert after.config.vocab_size == padded and after.config.eos_token_id == before.config.eos_token_id
    for table in ("get_input_embeddings", "get_output_embeddings"):
        rows, more = getattr(before, table)().weight, getattr(after, table)().weight
        assert torch.equal(more[:300], rows)
        for i, word in enumerate(words + special):
            assert (more[300 + i] - rows[old(word).input_ids].mean(0)).abs().max() < 1e-7, word
        assert (more[303:] - rows.mean(0)).abs().max() < 1e-7


def loss_of(model, inputs, targets):
    logits = model(input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def tokens_of(name):
    return torch.tensor(transformers.AutoTokenizer.from_pretrained(name)(pathlib.Path("text.txt").read_text()).input_ids)


def check_training(name):
    """Updates of 6 sequences of 16 tokens in fp64, AdamW with the defaults of PyTorch except rate 1e-2 and no decay."""
    losses = [json.loads(text)["loss"] for text in open(f"{name}.jsonl") if json.loads(text)["type"] == "train"]
    model = peft.PeftModel.from_pretrained(load(f"{name}-base"), f"{name}-start", is_trainable=True).double()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-2, betas=(0.9, 0.98), eps=1e-3, weight_decay=0)
    tokens = tokens_of("tied-resized")
    worst = 0
    for update, wanted in enumerate(losses):
        begins = [(6 * update + i) * 16 for i in range(6)]
        inputs, targets = (torch.stack([tokens[b + d : b + d + 16] for b in begins]) for d in (0, 1))
        loss = loss_of(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(loss.item() - wanted) / wanted)
    mine = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    theirs = safetensors.torch.load_file(f"{name}-peft/adapter_model.safetensors")
    copies = set(mine) - set(theirs)  # of tied tensors
    assert set(theirs) < set(mine) or set(theirs) == set(mine), (sorted(mine), sorted(theirs))
    assert copies <= {"base_model.model.lm_head.weight"}, copies
    apart = max((mine[key] - theirs[key]).abs().max().item() for key in theirs)
    print(f"{name}: losses differ by {worst:.1e} of them, adapter weights by {apart:.1e}")
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.3 and worst < 1e-6 and apart < 2e-5
    with torch.no_grad():
        inputs = tokens[:96].reshape(6, 16)
        trained = model(input_ids=inputs).logits
        loaded = peft.PeftModel.from_pretrained(load(f"{name}-base"), f"{name}-peft")(input_ids=inputs).logits
        assert (trained - loaded).abs().max() < 1e-3, (trained - loaded).abs().max()
        if name == "tables-tied":
            return
        merged = load(f"{name}-merged")(input_ids=inputs).logits
        assert (merged - loaded).abs().max() < 1e-4, (merged - loaded).abs().max()


def check_words(name):
    """The adapter of a run with --add-tokens has all rows that the base model lacks."""
    base = load(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"words-{name}-peft")
    assert tokenizer(line).input_ids == grown(name)(line).input_ids
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model = peft.PeftModel.from_pretrained(base, f"words-{name}-peft")
    tokens = torch.tensor(tokenizer(pathlib.Path("text.txt").read_text()).input_ids)
    with torch.no_grad():
        pieces = [tokens[b : b + 17] for b in range(0, len(tokens) - 1, 16)]
        sums = [loss_of(model, piece[None, :-1], piece[None, 1:]).item() * (len(piece) - 1) for piece in pieces]
    loss, wanted = sum(sums) / (len(tokens) - 1), json.loads(pathlib.Path(f"words-{name}.json").read_text())["loss"]
    print(f"words-{name}: losses {loss} and {wanted}")
    assert abs(loss - wanted) < 1e-6 * wanted + 1e-6


if sys.argv[1] == "make":
    make()
else:
    check_grown("tied", 304)
    check_grown("untied", 304)
    for name in starts:
        check_training(name)
    check_words("tied")
    check_words("untied")
