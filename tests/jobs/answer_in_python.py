"""Makes small random models, and writes into expected.json what transformers and plain PyTorch make of them in fp32: greedy
answers, the losses, the accuracy and the entropy of a text, and which choices of questions are the likeliest. One model has a chat
template, with which it answers conversations. python.cpp compares.
"""

import json
import math
import pathlib
import random
import sys

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

# Each token is a byte. The initial weights are large enough to give different answers to different prompts.
sizes = dict(vocab_size=256, bos_token_id=None, eos_token_id=None, initializer_range=0.15, attention_dropout=0.0)
configurations = {
    "gpt2": transformers.GPT2Config(n_embd=72, n_layer=3, n_head=4, n_positions=160, **sizes),
    "llama": transformers.LlamaConfig(hidden_size=72, intermediate_size=136, num_hidden_layers=3, num_attention_heads=6,
                                      num_key_value_heads=2, max_position_embeddings=160, **sizes),
}
# Windows, and rotary positions that depend on the length. All texts of `text.txt` and all questions are shorter than the original
# length of 72 tokens; prompts and their answers are longer.
rotary = dict(hidden_size=72, intermediate_size=136, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
              pad_token_id=None, **sizes)
factors = lambda scale: [1 + scale * i / 5 for i in range(6)]
configurations |= {
    "mistral": transformers.MistralConfig(**rotary, max_position_embeddings=160, sliding_window=20),
    "qwen2": transformers.Qwen2Config(**rotary, max_position_embeddings=160, use_sliding_window=True, sliding_window=7,
                                      max_window_layers=1),
    "dynamic": transformers.LlamaConfig(**rotary, max_position_embeddings=72,
                                        rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    "phi3": transformers.Phi3Config(**rotary, max_position_embeddings=160, original_max_position_embeddings=72, sliding_window=50,
                                    rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=factors(1),
                                                         long_factor=factors(3))),
    "gemma3": transformers.Gemma3TextConfig(**rotary, head_dim=8, query_pre_attn_scalar=12, max_position_embeddings=160, tie_word_embeddings=False,
                                            sliding_window=16, layer_types=["sliding_attention", "full_attention",
                                                                            "sliding_attention"]),
}
new_tokens, length = 64, 48

random.seed(1)
words = ["all", "work", "and", "no", "play", "makes", "jack", "a", "dull", "boy"]
phrase = lambda most: " ".join(random.choices(words, k=random.randint(1, most)))
prompts = [phrase(14) for _ in range(7)]
text = phrase(40) * 20  # its length is no multiple of a sequence's
questions = [{"context": phrase(8), "choices": [" " + phrase(5) for _ in range(3)], "answer": random.randrange(3)}
             for _ in range(25)]
pathlib.Path("prompts.txt").write_text("\n".join(prompts) + "\n")
pathlib.Path("text.txt").write_text(text)
pathlib.Path("questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))


def tokens(of):
    return torch.tensor([list(of.encode())])


def losses(model, ids):
    """Of each token but the first."""
    return torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none").double()


def predictions(model, ids):
    """For each token but the first, the entropy of its prediction, and whether it is the likeliest token: as in TRL's SFTTrainer."""
    logits = model(ids).logits[0, :-1].double()
    logp = torch.log_softmax(logits, -1)
    return torch.stack([-(logp.exp() * logp).sum(-1), (logits.argmax(-1) == ids[0, 1:]).double()])


def forget_lengths(rotary, *_):
    """transformers keeps the frequencies of "dynamic" for the longest sequence so far. Here each pass is on its own."""
    rotary.max_seq_len_cached = rotary.original_max_seq_len
    rotary.inv_freq = rotary.original_inv_freq


@torch.no_grad()
def expected(model):
    answers = []
    for prompt in prompts:
        ids = tokens(prompt)
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new_tokens,
                                max_new_tokens=new_tokens, pad_token_id=0, use_cache=False)
        answers.append(answer[0, ids.shape[1]:].tolist())
    ids = tokens(text)
    pieces = [ids[:, begin : begin + length + 1] for begin in range(0, ids.shape[1] - 1, length)]
    loss = torch.cat([losses(model, piece) for piece in pieces])
    entropy, accuracy = torch.cat([predictions(model, piece) for piece in pieces], 1).mean(1).tolist()
    right = dict(acc=0, acc_per_token=0, acc_norm=0)
    for question in questions:
        context = len(question["context"].encode())
        sums = [losses(model, tokens(question["context"] + choice))[context - 1 :].sum().item() for choice in question["choices"]]
        # Sizes in tokens. acc_norm counts characters without the space in front.
        sizes = [len(choice.encode()) for choice in question["choices"]]
        for name, of in (("acc", [1] * 3), ("acc_per_token", sizes), ("acc_norm", [size - 1 for size in sizes])):
            shares = [s / n for s, n in zip(sums, of)]
            right[name] += shares.index(min(shares)) == question["answer"]
    return dict(answers=answers, tokens=len(loss), loss=loss.mean().item(), ppl=math.exp(loss.mean().item()),
                entropy=entropy, mean_token_accuracy=accuracy, logprobs=(-loss).tolist(),
                **{name: count / len(questions) for name, count in right.items()})


found = {}
for name, configuration in configurations.items():
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(configuration).float().eval()
    model.save_pretrained(name)
    if name == "dynamic": model.model.rotary_emb.register_forward_pre_hook(forget_lengths)
    found[name] = expected(model)


@torch.no_grad()
def answers_to_conversations():
    """Greedy answers to the rows of rows.jsonl, whose last answers are left out."""
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**rotary | dict(vocab_size=501))).float().eval()
    model.save_pretrained("chat")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=sys.argv[1], eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    tokenizer.save_pretrained("chat")
    message = lambda role: {"role": role, "content": phrase(9)}
    rows = [{"messages": [message(role) for role in roles]} for roles in
            (["user"], ["user", "assistant"], ["system", "user", "assistant", "user"], ["system", "user", "assistant", "user", "assistant"])]
    rows += [{"prompt": [message("user")], "completion": [message("assistant")]}, {"prompt": phrase(9)}]
    pathlib.Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = []
    for row in rows:
        asked = row.get("messages", row.get("prompt"))
        asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        asked = asked[:-1] if asked[-1]["role"] == "assistant" else asked
        ids = torch.tensor([tokenizer(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True), add_special_tokens=False).input_ids])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, pad_token_id=0,
                                eos_token_id=tokenizer.eos_token_id)
        answers.append(answer[0, ids.shape[1]:].tolist())
    return answers


pathlib.Path("expected.json").write_text(json.dumps(dict(new_tokens=new_tokens, length=length, models=found,
                                                         conversations=answers_to_conversations())))
