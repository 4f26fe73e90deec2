#!/usr/bin/env python3
"""Writes chat-tokenizer.json, which is smollm2.json with the token that ends a message of ChatML, and chat.json: what transformers'
apply_chat_template() makes of conversations with tokenizers of this folder, and which of these tokens are of answers: those that have
a character behind the text that asks for the answer (add_generation_prompt), up to the token that ends its turn, by the offsets of
Hugging Face's tokenizers.

    pip install transformers==5.24.0 jinja2==3.1.6
    python3 make_chat.py
"""
import json, os
import tokenizers
from transformers import PreTrainedTokenizerFast

here = os.path.dirname(os.path.abspath(__file__))
tokenizer = tokenizers.Tokenizer.from_file(os.path.join(here, "smollm2.json"))
tokenizer.add_special_tokens(["<|im_end|>"])
tokenizer.save(os.path.join(here, "chat-tokenizer.json"), pretty=False)

chatml = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help."
          "<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
mistral = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
           "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% endif %}{% endfor %}")
llama2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
          "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
          "{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + "
          "system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
          "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == "
          "'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

gemma = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
         "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
         "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == "
         "'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role "
         "+ '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
         "{{'<start_of_turn>model\n'}}{% endif %}")

gemma3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

system = {"role": "system", "content": "Be short."}
first = [{"role": "user", "content": "Who created the heaven?"}, {"role": "assistant", "content": "God did; in the beginning."}]
second = [{"role": "user", "content": " naïve 天地 😀 "}, {"role": "assistant", "content": "\n\n  we'll see </x>\n"}]
# The last one tries what is between the template's words and the content.
conversations = [first, [system] + first + second, [{"role": "system", "content": "\n Be short. \n"}] + second, second + first, [{"role": "user", "content": "?\n"}, {"role": "assistant", "content": "\n!"}]]

cases = []
for name, template, bos, end in [("chat-tokenizer.json", chatml, "<s>", "<|im_end|>"), ("mistral.json", mistral, "<s>", "</s>"),
                                 ("llama2.json", llama2, "<s>", "</s>"), ("gemma.json", gemma, "<bos>", "<end_of_turn>"),
                                 ("gemma.json", gemma3, "<bos>", "<end_of_turn>")]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(here, name), bos_token=bos, eos_token=end, chat_template=template)
    lines = []
    for messages in conversations:
        if template in (mistral, gemma) and messages[0]["role"] == "system":
            continue
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert encoding.ids == ids
        mask, at = [0] * len(ids), 0
        for n, message in enumerate(messages):
            content = message["content"].strip() if template in (llama2, gemma, gemma3) and message["role"] != "system" else message["content"]
            at = text.index(content, at) + len(content)
            if message["role"] != "assistant":
                continue
            begin = len(tokenizer.apply_chat_template(messages[:n], tokenize=False, add_generation_prompt=True))
            at = text.index(end, at) + len(end)
            for i, (left, right) in enumerate(encoding.offsets):
                if right > begin and left < at:
                    mask[i] = 1
        lines.append({"messages": messages, "ids": ids, "mask": mask})
    cases.append({"tokenizer": name, "template": template, "bos": bos, "eos": end, "lines": lines})
with open(os.path.join(here, "chat.json"), "w") as out:
    json.dump(cases, out, ensure_ascii=False, separators=(",", ":"))
    out.write("\n")
