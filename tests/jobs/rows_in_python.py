"""Conversations in ShareGPT's and Alpaca's forms, in files of datasets, and their tokens as TRL makes them; python_text.cpp compares.

    rows_in_python.py --probe       exits with 77 without TRL and datasets
    rows_in_python.py TOKENIZER     NAME.jsonl, NAME.parquet and NAME.jsonl.gz for each form NAME; a folder `model` with the tokenizer of the
                                    folder's file TOKENIZER and a chat template; wanted.json: for each form the ids and the mask of answers
"""

import importlib.util
import json
import pathlib
import random
import sys

if sys.argv[1] == "--probe":
    sys.exit(0 if importlib.util.find_spec("trl") and importlib.util.find_spec("datasets") else 77)

import datasets
import transformers
from trl.data_utils import maybe_convert_to_chatml

random.seed(11)
template = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
            "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
model = pathlib.Path("model")
model.mkdir()
(model / "tokenizer.json").write_bytes(pathlib.Path(sys.argv[1]).read_bytes())
(model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "<|im_end|>"}))
tokenizer = transformers.AutoTokenizer.from_pretrained(model)


def text():
    return " ".join(random.choice(["God", "the", "earth", "wörd", "漢", "\"a\"", "b\\c", "one\ntwo", "7"]) for _ in range(random.randrange(1, 12)))


def sharegpt(human, gpt):
    turns = [{"from": "system", "value": text()}] if random.random() < 0.3 else []
    for _ in range(random.randrange(1, 4)):
        turns += [{"from": human, "value": text()}, {"from": gpt, "value": text()}]
    return {"conversations": turns}


def alpaca():
    return {"instruction": text(), "input": random.choice(["", text()]), "output": text(), "system": random.choice(["", text()]),
            "history": [[text(), text()] for _ in range(random.randrange(3))]}


def of_sharegpt(row):
    """By TRL, which takes the words for roles as they are."""
    words = {"human": "user", "student": "user", "gpt": "assistant", "teacher": "assistant", "system": "system"}
    return maybe_convert_to_chatml({"conversations": [{"from": words[turn["from"]], "value": turn["value"]} for turn in row["conversations"]]})["messages"]


def of_alpaca(row):
    """As AlpacaDatasetConverter of LLaMA-Factory (src/llamafactory/data/converter.py)."""
    messages = [{"role": "system", "content": row["system"]}] if row["system"] else []
    for prompt, answer in row["history"]:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    query = [part for part in (row["instruction"], row["input"]) if part]
    return messages + [{"role": "user", "content": "\n".join(query)}, {"role": "assistant", "content": row["output"]}]


forms = {"sharegpt": ([sharegpt("human", "gpt") for _ in range(70)], of_sharegpt), "alpaca": ([alpaca() for _ in range(70)], of_alpaca),
         "dialog": ([sharegpt("student", "teacher") for _ in range(70)], of_sharegpt)}
wanted = {}
for name, (rows, convert) in forms.items():
    wanted[name] = {"ids": [], "mask": []}
    for row in rows:
        made = tokenizer.apply_chat_template(convert(row), tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        wanted[name]["ids"] += made["input_ids"]
        wanted[name]["mask"] += made["assistant_masks"]
    if name == "dialog":
        rows = [{"dialog": [{"who": turn["from"], "what": turn["value"]} for turn in row["conversations"]]} for row in rows]
    made = datasets.Dataset.from_list(rows)
    made.to_parquet(f"{name}.parquet", batch_size=30)
    made.to_json(f"{name}.jsonl", force_ascii=False)
    made.to_json(f"{name}.jsonl.gz", compression="gzip")
pathlib.Path("wanted.json").write_text(json.dumps(wanted))
