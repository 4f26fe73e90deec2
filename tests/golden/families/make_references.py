#!/usr/bin/env python3
"""Makes references.json beside this file with PyTorch and Hugging Face transformers (fp32, CPU, one process).

    pip install torch transformers numpy
    python3 make_references.py

For each family of models: random small shapes, and for each of them loss and gradient norm of three updates of plain gradient
descent. Weights and tokens follow from formulas (README.md), so that only numbers need to be kept.
"""
import json, os
import numpy as np, torch
from transformers import (BioGptConfig, BioGptForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, OPTConfig, OPTForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Starcoder2Config,
                          Starcoder2ForCausalLM, XGLMConfig, XGLMForCausalLM)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
SHAPES, UPDATES, RATE = 12, 3, 0.125


def mixed(numbers):
    """The finalizer of MurmurHash3 (Appleby, public domain) on 32-bit numbers."""
    h = numbers.astype(np.uint32)
    h ^= h >> np.uint32(16); h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13); h *= np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def seed_of(name):
    """FNV-1a."""
    h = 2166136261
    for byte in name.encode(): h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return h


def values_of(name, count, is_gain):
    """Multiples of 2^-25 in [-1/4, 1/4), 1 more for the gains of norms."""
    seeds = (np.arange(count, dtype=np.uint64) * 2654435761 + seed_of(name)) & 0xFFFFFFFF
    numbers = (mixed(seeds) >> np.uint32(8)).astype(np.int64) - 2**23
    return numbers.astype(np.float32) / np.float32(2**25) + np.float32(1 if is_gain else 0)


def tokens_of(vocabulary, count):
    return (mixed(np.arange(count, dtype=np.uint64) + 1) % np.uint32(vocabulary)).astype(np.int64)


def one_of(g, values):
    return values[int(g.integers(len(values)))]


def between(g, low, high):
    return int(g.integers(low, high + 1))


def sizes(g):
    return dict(vocab_size=between(g, 11, 97), num_hidden_layers=between(g, 1, 3), tie_word_embeddings=bool(g.integers(2)),
                pad_token_id=None, bos_token_id=0, eos_token_id=1, attn_implementation="eager")


def rotary(g, T):
    """Sizes of what is like Llama: grouped queries, heads that have nothing to do with the width."""
    rope = dict(rope_type="default", rope_theta=one_of(g, [1e4, 1e6]))
    if g.random() < 0.25:
        rope = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=16)
    kv_heads = between(g, 1, 3)
    return dict(sizes(g), hidden_size=between(g, 9, 48), intermediate_size=between(g, 7, 90), num_key_value_heads=kv_heads,
                num_attention_heads=kv_heads * between(g, 1, 3), head_dim=2 * between(g, 1, 9), rope_parameters=rope,
                rms_norm_eps=one_of(g, [1e-5, 1e-6]), max_position_embeddings=T + between(g, 0, 9))


def mistral(g, T):
    return MistralForCausalLM(MistralConfig(**rotary(g, T), sliding_window=one_of(g, [None, T, T + 5])))


def qwen2(g, T):
    shape = rotary(g, T)
    if g.random() < 0.5:  # most models leave the size of a head to follow from the width
        shape["hidden_size"] = shape["num_attention_heads"] * shape.pop("head_dim")
    return Qwen2ForCausalLM(Qwen2Config(**shape))


def qwen3(g, T):
    shape = rotary(g, T)
    shape["head_dim"] = max(4, shape["head_dim"])  # a norm of two numbers magnifies rounding: 1e-6 in PyTorch's own fp32
    return Qwen3ForCausalLM(Qwen3Config(**shape, attention_bias=g.random() < 0.25))


def opt(g, T):
    heads = between(g, 1, 5)
    return OPTForCausalLM(OPTConfig(**sizes(g), num_attention_heads=heads, hidden_size=heads * between(g, 3, 11),
                                    ffn_dim=between(g, 7, 90), max_position_embeddings=T + between(g, 0, 9),
                                    enable_bias=g.random() < 0.75, dropout=0.0,
                                    activation_function=one_of(g, ["relu", "relu", "gelu"])))


def starcoder2(g, T):
    shape = rotary(g, T)
    del shape["head_dim"], shape["rms_norm_eps"]
    shape["hidden_size"] = shape["num_attention_heads"] * 2 * between(g, 1, 9)
    return Starcoder2ForCausalLM(Starcoder2Config(**shape, norm_epsilon=one_of(g, [1e-5, 1e-6]), use_bias=g.random() < 0.75,
                                                  residual_dropout=0.0, embedding_dropout=0.0))


def biogpt(g, T):
    heads = between(g, 1, 5)
    return BioGptForCausalLM(BioGptConfig(**sizes(g), num_attention_heads=heads, hidden_size=heads * between(g, 3, 11),
                                          intermediate_size=between(g, 7, 90), max_position_embeddings=T + between(g, 0, 9),
                                          hidden_act=one_of(g, ["gelu", "gelu", "relu"]), scale_embedding=g.random() < 0.75,
                                          hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def xglm(g, T):
    shape, heads = sizes(g), between(g, 1, 5)
    shape["num_layers"] = shape.pop("num_hidden_layers")
    return XGLMForCausalLM(XGLMConfig(**shape, attention_heads=heads, d_model=heads * between(g, 4, 11),
                                      ffn_dim=between(g, 7, 90), max_position_embeddings=T + between(g, 0, 9),
                                      activation_function=one_of(g, ["gelu", "gelu", "relu"]),
                                      scale_embedding=g.random() < 0.75, dropout=0.0, attention_dropout=0.0))


def factors(g, n):
    return [1.0 + between(g, 0, 60) / 8 for _ in range(n)]


def scaled(g, T, kind, elements):
    """Rotary positions of a kind, and max_position_embeddings. The original length is shorter than T, T, or longer."""
    original, theta = max(2, T + one_of(g, [-4, -1, 0, 5])), one_of(g, [1e4, 50.0])
    rope = dict(rope_type=kind, rope_theta=theta, factor=one_of(g, [2.0, 3.5, 8.0]))
    if kind in ("linear", "dynamic"): return rope, original
    rope.update(original_max_position_embeddings=original)
    if kind == "yarn":
        rope.update(one_of(g, [{}, dict(beta_fast=4.0, beta_slow=0.5), dict(truncate=False), dict(attention_factor=1.25),
                               dict(mscale=1.0, mscale_all_dim=0.5), dict(beta_fast=2.0, truncate=False)]))
    if kind == "longrope":
        rope.update(short_factor=factors(g, elements // 2), long_factor=factors(g, elements // 2))
        if g.random() < 0.5: del rope["factor"]
    return rope, 4 * original


def llama(g, T, number):
    """Every kind of rotary positions."""
    shape = rotary(g, T)
    shape["head_dim"] = max(4, shape["head_dim"])
    shape["hidden_size"] = shape["num_attention_heads"] * between(g, 3, 8)
    kind = ["linear", "dynamic", "yarn", "longrope"][number % 4]
    shape["rope_parameters"], shape["max_position_embeddings"] = scaled(g, T, kind, shape["head_dim"])
    return LlamaForCausalLM(LlamaConfig(**shape))


def windows(g, T, number):
    """Windows that are shorter than the sequences, in some or all layers."""
    shape, window = dict(rotary(g, T), num_hidden_layers=between(g, 2, 5)), one_of(g, [1, 2, 3, T - 1, T // 2])
    if number % 3 == 0: return MistralForCausalLM(MistralConfig(**shape, sliding_window=window))
    shape.update(use_sliding_window=True, sliding_window=window, max_window_layers=between(g, 0, 2))
    if number % 2 == 0:  # as in Gemma
        every = between(g, 2, shape["num_hidden_layers"])
        shape["layer_types"] = ["full_attention" if (i + 1) % every == 0 else "sliding_attention"
                                for i in range(shape["num_hidden_layers"])]
    shape["head_dim"] = max(8, shape["head_dim"])
    if number % 3 == 1: return Qwen2ForCausalLM(Qwen2Config(**shape))
    return Qwen3ForCausalLM(Qwen3Config(**shape))


def phi3(g, T, number):
    kv_heads, size = between(g, 1, 3), 4 * between(g, 1, 5)
    heads, part = kv_heads * between(g, 1, 3), one_of(g, [1.0, 0.5, 0.5, 0.75 if size % 8 == 0 else 1.0])
    shape = dict(sizes(g), hidden_size=heads * size, intermediate_size=between(g, 7, 90), num_attention_heads=heads,
                 num_key_value_heads=kv_heads, rms_norm_eps=one_of(g, [1e-5, 1e-6]), max_position_embeddings=T + between(g, 0, 9),
                 sliding_window=one_of(g, [None, 3, T - 1, T + 5]))
    rope = dict(rope_type="default", rope_theta=one_of(g, [1e4, 50.0]), partial_rotary_factor=part)
    if number % 3 > 0:
        n, original = int(size * part) // 2, max(2, T + one_of(g, [-4, -1, 0, 5]))
        rope.update(rope_type="longrope", short_factor=factors(g, n), long_factor=factors(g, n))
        shape.update(original_max_position_embeddings=original, max_position_embeddings=4 * original)
    return Phi3ForCausalLM(Phi3Config(**shape, rope_parameters=rope))


def gemma3_text(g, T, number):
    shape = rotary(g, T)
    size = shape["head_dim"] = 8 * between(g, 1, 3)  # norms of few numbers magnify rounding
    heads = shape["num_attention_heads"]
    full = dict(rope_type="default", rope_theta=one_of(g, [1e6, 1e4]))
    if number % 3 == 0:
        full = dict(rope_type="linear", rope_theta=1e6, factor=8.0)
    shape.update(hidden_size=heads * (16 // heads + between(g, 4, 8)), num_hidden_layers=between(g, 1, 4), tie_word_embeddings=g.random() < 0.6,
                 rope_parameters=dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=one_of(g, [1e4, 50.0]))),
                 query_pre_attn_scalar=one_of(g, [size, size + 3]), sliding_window=one_of(g, [1, 3, T - 1, T + 5]))
    every = one_of(g, [2, 3])
    shape["layer_types"] = ["full_attention" if (i + 1) % every == 0 else "sliding_attention"
                            for i in range(shape["num_hidden_layers"])]
    return Gemma3ForCausalLM(Gemma3TextConfig(**shape, attention_bias=g.random() < 0.25))


def run(model, B, T):
    seen = set()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if id(p) in seen: continue
            seen.add(id(p))
            is_gain = p.dim() == 1 and name.endswith("weight") and not model.config.model_type.startswith("gemma")
            p.copy_(torch.from_numpy(values_of(name, p.numel(), is_gain)).reshape(p.shape))
    tokens = torch.from_numpy(tokens_of(model.config.vocab_size, UPDATES * B * T + 1))
    steps = []
    for u in range(UPDATES):
        starts = [(u * B + k) * T for k in range(B)]
        x = torch.stack([tokens[s:s + T + 1] for s in starts])
        logits = model(input_ids=x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        model.zero_grad(); loss.backward()
        squares = sum((p.grad.detach().double()**2).sum() for p in model.parameters())
        steps.append(dict(loss=float(loss.detach()), gnorm=float(squares.sqrt())))
        with torch.no_grad():
            for p in model.parameters(): p.sub_(RATE * p.grad)
    return steps


def main():
    cases = []
    for number, build in enumerate([mistral, qwen2, qwen3, opt, starcoder2, biogpt, xglm, llama, windows, phi3, gemma3_text]):
        for shape in range(2 * SHAPES if build in (llama, windows) else SHAPES):
            g = np.random.default_rng([number, shape])
            B, T = between(g, 1, 4), between(g, 5, 23)
            model = (build(g, T, shape) if number >= 7 else build(g, T)).train()
            config = json.loads(model.config.to_json_string())
            for key in ("transformers_version", "architectures", "use_cache"): config.pop(key, None)
            cases.append(dict(config=config, B=B, T=T, steps=run(model, B, T)))
            print(config["model_type"], shape, cases[-1]["steps"][0], cases[-1]["steps"][-1])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "references.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    with open(path, "w") as f: f.write(f'{{"rate": {RATE}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
