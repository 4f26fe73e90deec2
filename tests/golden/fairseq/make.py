#!/usr/bin/env python3
"""Makes two tiny language models after fairseq's rules (fairseq is not needed), and what tests compare with.

    python3 make.py FOLDER     # needs torch and numpy

FOLDER gets learned.pt and sinusoidal.pt, in the format of fairseq's checkpoints, refused.pt, which lacks the last norm, and
losses.json: for each of the first two its mean loss in nats over the tokens that losses.json lists. tools/fairseq-to-hf makes the folders beside this file of them.

The rules, each with the file of facebookresearch/fairseq that it is from:
- models/transformer/transformer_decoder.py: x = sqrt(C) E[token] + P[position]; blocks; layer_norm; output_projection, which is E
  where share_decoder_input_output_embed says so.
- modules/learned_positional_embedding.py, modules/sinusoidal_positional_embedding.py, utils.make_positions: the first token has
  position padding_idx + 1 = 2.
- modules/transformer_layer.py (normalize_before): x += attention(norm(x)); x += fc2(activation(fc1(norm(x)))).
- modules/multihead_attention.py: queries are scaled by D^-1/2 after their projection and its bias; softmax in fp32.
- criterions/cross_entropy.py: the sum over tokens of -log softmax, divided by their number.
"""
import argparse
import json
import math
import pathlib
import sys

import numpy
import torch

torch.set_num_threads(1)
V, C, H, F, L, T, B = 37, 18, 3, 22, 2, 19, 3
PAD = 1
MODELS = {
    "learned": dict(arch="transformer_lm_gpt3_small", decoder_learned_pos=True, share_decoder_input_output_embed=True,
                    activation_fn="gelu"),
    "sinusoidal": dict(arch="transformer_lm_big", decoder_learned_pos=False, share_decoder_input_output_embed=False,
                       activation_fn="relu"),
}


def weights_of(settings, seed):
    numbers = numpy.random.RandomState(seed)
    draw = lambda *shape: torch.from_numpy((0.3 * numbers.standard_normal(shape)).astype(numpy.float32))
    weights = {"decoder.version": torch.Tensor([3]), "decoder.embed_tokens.weight": draw(V, C)}
    if settings["decoder_learned_pos"]:
        weights["decoder.embed_positions.weight"] = draw(T + PAD + 1, C)
    else:
        weights["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    for layer in range(L):
        at = f"decoder.layers.{layer}."
        for name, shape in [("self_attn.k_proj", (C, C)), ("self_attn.v_proj", (C, C)), ("self_attn.q_proj", (C, C)),
                            ("self_attn.out_proj", (C, C)), ("fc1", (F, C)), ("fc2", (C, F))]:
            weights[at + name + ".weight"], weights[at + name + ".bias"] = draw(*shape), draw(shape[0])
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            weights[at + name + ".weight"], weights[at + name + ".bias"] = 1 + draw(C), draw(C)
    weights["decoder.layer_norm.weight"], weights["decoder.layer_norm.bias"] = 1 + draw(C), draw(C)
    shared = settings["share_decoder_input_output_embed"]
    weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"] if shared else draw(V, C)
    return weights


def sinusoids(rows):
    half = C // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(rows, dtype=torch.float).unsqueeze(1) * frequencies.unsqueeze(0)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


def loss(settings, weights, inputs, targets):
    linear = lambda x, name: torch.nn.functional.linear(x, weights[name + ".weight"], weights[name + ".bias"])
    norm = lambda x, name: torch.nn.functional.layer_norm(x, (C,), weights[name + ".weight"], weights[name + ".bias"], 1e-5)
    activation = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}[settings["activation_fn"]]
    heads = lambda x: x.view(B, T, H, C // H).transpose(1, 2)
    table = weights["decoder.embed_positions.weight"] if settings["decoder_learned_pos"] else sinusoids(T + PAD + 1)
    x = math.sqrt(C) * weights["decoder.embed_tokens.weight"][inputs] + table[PAD + 1 : PAD + 1 + T]
    future = torch.triu(torch.full((T, T), float("-inf")), 1)
    for layer in range(L):
        at = f"decoder.layers.{layer}."
        y = norm(x, at + "self_attn_layer_norm")
        q = heads(linear(y, at + "self_attn.q_proj") * (C // H) ** -0.5)
        k, v = heads(linear(y, at + "self_attn.k_proj")), heads(linear(y, at + "self_attn.v_proj"))
        attended = torch.softmax(q @ k.transpose(2, 3) + future, dim=-1) @ v
        x = x + linear(attended.transpose(1, 2).reshape(B, T, C), at + "self_attn.out_proj")
        x = x + linear(activation(linear(norm(x, at + "final_layer_norm"), at + "fc1")), at + "fc2")
    logits = norm(x, "decoder.layer_norm") @ weights["decoder.output_projection.weight"].T
    return torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten()).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [int(t) for t in numpy.random.RandomState(7).randint(2, V, B * T + 1)]
    inputs, targets = (torch.tensor(tokens[d : d + B * T]).view(B, T) for d in (0, 1))
    record = dict(tokens=tokens, B=B, T=T, losses={})
    for seed, (name, settings) in enumerate(MODELS.items()):
        settings = dict(settings, decoder_embed_dim=C, decoder_ffn_embed_dim=F, decoder_layers=L, decoder_attention_heads=H,
                        decoder_normalize_before=True, no_decoder_final_norm=False, no_scale_embedding=False,
                        max_target_positions=T, tokens_per_sample=T, adaptive_input=False, adaptive_softmax_cutoff=None)
        weights = weights_of(settings, seed)
        record["losses"][name] = loss(settings, weights, inputs, targets)
        # Both ways in which fairseq says what the model is: args before 2021, cfg since.
        said = dict(args=argparse.Namespace(**settings)) if name == "learned" else dict(
            args=None, cfg=dict(model=argparse.Namespace(_name="transformer_lm", **settings)))
        torch.save(dict(said, model=weights, optimizer_history=[], extra_state={}), folder / f"{name}.pt")
    # One that the tool refuses: as --arch transformer_lm_gbw.
    weights = {key: value for key, value in weights.items() if not key.startswith("decoder.layer_norm.")}
    torch.save(dict(said, model=weights), folder / "refused.pt")
    (folder / "losses.json").write_text(json.dumps(record) + "\n")
    print(record["losses"])


if __name__ == "__main__":
    main()
