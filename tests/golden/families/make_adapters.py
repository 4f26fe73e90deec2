#!/usr/bin/env python3
"""Makes adapters.json beside this file with PyTorch, transformers and PEFT (fp64, CPU, one process).

    pip install torch transformers peft numpy
    python3 make_adapters.py

Loss and gradient norm of three updates of plain gradient descent of adapters, also of the embedding and the head. Weights and
tokens follow from the formulas of make_references.py, and so do both matrices of an adapter.
"""
import json, os
import numpy as np, peft, torch
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, XGLMConfig, XGLMForCausalLM)
from make_references import RATE, UPDATES, tokens_of, values_of

torch.set_default_dtype(torch.float64)
small = dict(pad_token_id=None, bos_token_id=0, eos_token_id=1, attn_implementation="eager")
llama = dict(small, hidden_size=18, intermediate_size=31, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
             head_dim=6, max_position_embeddings=32)
every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def cases():
    for tied in (False, True):
        yield LlamaForCausalLM(LlamaConfig(**llama, vocab_size=61, tie_word_embeddings=tied)), dict(
            r=3, lora_alpha=5, use_rslora=True, target_modules=every + ["embed_tokens", "lm_head"])
    yield Qwen2ForCausalLM(Qwen2Config(**llama, vocab_size=47, tie_word_embeddings=False)), dict(
        r=2, lora_alpha=3, target_modules=["q_proj", "lm_head"], rank_pattern={"lm_head": 5}, alpha_pattern={"q_proj": 7})
    yield GPT2LMHeadModel(GPT2Config(
        **small, vocab_size=53, n_embd=20, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)), dict(
        r=4, lora_alpha=6, target_modules=["wte", "lm_head", "c_attn"], rank_pattern={"wte": 1})
    yield Gemma3ForCausalLM(Gemma3TextConfig(
        **dict(llama, hidden_size=24, head_dim=8), vocab_size=41, tie_word_embeddings=True, query_pre_attn_scalar=8,
        sliding_window=4, layer_types=["sliding_attention", "full_attention"])), dict(
        r=2, lora_alpha=1, target_modules=["embed_tokens", "v_proj"])
    yield XGLMForCausalLM(XGLMConfig(
        **dict(small, pad_token_id=1), vocab_size=43, num_layers=2, attention_heads=3, d_model=15, ffn_dim=29,
        max_position_embeddings=32, tie_word_embeddings=True, scale_embedding=True, dropout=0.0, attention_dropout=0.0)), dict(
        r=2, lora_alpha=1, target_modules=["embed_tokens", "lm_head"])


def fill(parameters, is_gain):
    seen = set()
    with torch.no_grad():
        for name, p in parameters:
            if id(p) in seen: continue
            seen.add(id(p))
            p.copy_(torch.from_numpy(values_of(name, p.numel(), is_gain(name, p))).reshape(p.shape))


def run(model, lora, B, T):
    model = model.train()
    is_gemma = model.config.model_type.startswith("gemma")
    fill(model.named_parameters(), lambda name, p: p.dim() == 1 and name.endswith("weight") and not is_gemma)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**lora, task_type="CAUSAL_LM"))
    trained = [(name, p) for name, p in adapted.named_parameters() if p.requires_grad]
    fill([(name.removeprefix("base_model.model.").replace(".default", ""), p) for name, p in trained], lambda name, p: False)
    tokens = torch.from_numpy(tokens_of(model.config.vocab_size, UPDATES * B * T + 1))
    steps = []
    for u in range(UPDATES):
        starts = [(u * B + k) * T for k in range(B)]
        x = torch.stack([tokens[s:s + T + 1] for s in starts])
        logits = adapted(input_ids=x[:, :-1]).logits
        assert logits.dtype == torch.float64
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        adapted.zero_grad(); loss.backward()
        squares = sum((p.grad**2).sum() for _, p in trained)
        steps.append(dict(loss=float(loss.detach()), gnorm=float(squares.sqrt())))
        with torch.no_grad():
            for _, p in trained: p.sub_(RATE * p.grad)
    return steps


def main():
    made = []
    for number, (model, lora) in enumerate(cases()):
        B, T = 2 + number % 2, 9 + number
        config = json.loads(model.config.to_json_string())
        for key in ("transformers_version", "architectures", "use_cache", "dtype"): config.pop(key, None)
        made.append(dict(config=config, lora=lora, B=B, T=T, steps=run(model, lora, B, T)))
        print(config["model_type"], made[-1]["steps"])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapters.json")
    with open(path, "w") as f: f.write(f'{{"rate": {RATE}, "cases": [\n' + ",\n".join(json.dumps(case) for case in made) + "\n]}\n")


if __name__ == "__main__":
    main()
