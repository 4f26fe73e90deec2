"""What transformers' apply_chat_template() makes of random conversations; python_text.cpp compares.

    chats_in_python.py --probe              exits with 77 without transformers and Jinja
    chats_in_python.py CASES FOLDER...      chats.json: the templates (*.jinja) of the folders, and of the packages that this Python has, 500
                                            conversations, and for each template CASES of these with the text that it writes and with what
                                            its generation blocks wrote, or with null if it refuses the conversation
"""

import importlib.util
import json
import pathlib
import random
import sys

if sys.argv[1] == "--probe":
    sys.exit(0 if importlib.util.find_spec("transformers") and importlib.util.find_spec("jinja2") else 77)

from transformers.utils.chat_template_utils import _alias_reasoning_fields, _normalize_chat_messages, render_jinja_template

random.seed(7)
tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
texts = ["Who?", " Who? ", "Me.\n", "\n\nIt's \"quoted\" & <b>bold</b>\t", "naïve 天地 😀", "", "a\\nb", "{{ not jinja }} {% if %}", "'single'", "x" * 70,
         "line one\nline two\r\nline three", "<tool_response>\n7\n</tool_response>", "[INST] no [/INST]", "\u00a0nbsp\u2028", "0", "None", "{\"a\": [1, 2]}",
         "<think>\nhm\n</think>\n\nYes.", "<think></think>No", "/no_think Go", "The end.<|im_end|>"]
kwargs = [{}, {}, {}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"date_string": "1 May 2025"},
          {"reasoning_effort": "low"}, {"preserve_thinking": True}, {"tools_in_user_message": False}, {"builtin_tools": ["browser", "python"]},
          {"model_identity": "You are a test."}, {"custom_tools": None}]


def text():
    return random.choice(texts) if random.random() < 0.7 else random.choice(texts) + " " + random.choice(texts)


def value(depth=0):
    kinds = [lambda: random.choice(texts), lambda: random.randrange(-9, 10**6), lambda: random.choice([0.5, 1e-7, 1e16, 3.0, -2.25]),
             lambda: random.choice([True, False]), lambda: None]
    if depth < 3:
        kinds += [lambda: [value(depth + 1) for _ in range(random.randrange(3))],
                  lambda: {random.choice(["a", "city", "units", "z y", "é"]): value(depth + 1) for _ in range(random.randrange(3))}]
    return random.choice(kinds)()


def schema(depth=0):
    kind = random.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
    one = {"type": kind}
    if random.random() < 0.7:
        one["description"] = random.choice(["The city.", "A 'quoted' \"thing\" <&>", "线"])
    if kind == "string" and random.random() < 0.3:
        one["enum"] = ["celsius", "fahrenheit"]
    if kind == "array":
        one["items"] = schema(depth + 1)
    if kind == "object":
        names = random.sample(["a", "b", "city"], random.randint(0, 3))
        one["properties"] = {name: schema(depth + 1) for name in names}
        if random.random() < 0.6:
            one["required"] = names[:1]
    if random.random() < 0.15:
        one["default"] = random.choice(["x", 3])
    if random.random() < 0.1:
        one["nullable"] = True
    if random.random() < 0.1:
        one["type"] = [kind, "null"]
    return one


def tool(name):
    function = {"name": name, "description": random.choice(["Gets the weather.", "Adds two numbers.\nThen stops.", ""]),
                "parameters": {"type": "object", "properties": {key: schema() for key in random.sample(["city", "units", "n"], random.randint(0, 3))}}}
    if random.random() < 0.7:
        function["parameters"]["required"] = list(function["parameters"]["properties"])[:1]
    if random.random() < 0.2:
        function["return"] = {"type": "string", "description": "The answer."}
    return {"type": "function", "function": function}


def call(name):
    arguments = {random.choice(["city", "n", "units"]): value() for _ in range(random.randrange(3))}
    one = {"type": "function", "function": {"name": name, "arguments": arguments if random.random() < 0.8 else json.dumps(arguments)}}
    if random.random() < 0.6:
        one["id"] = "call%05d" % random.randrange(10**5)
    return one


def content():
    if random.random() < 0.07:
        return [{"type": "text", "text": text()} for _ in range(random.randint(1, 2))]
    return text()


def conversation():
    messages, tools = [], None
    if random.random() < 0.4:
        messages.append({"role": random.choice(["system"] * 8 + ["developer"]), "content": content()})
    with_tools = random.random() < 0.35
    names = random.sample(["get_weather", "add", "find"], random.randint(1, 2))
    if with_tools and random.random() < 0.9:
        tools = [tool(name) for name in names]
    for _ in range(random.choice([1, 1, 2, 3])):
        messages.append({"role": "user", "content": content()})
        while with_tools and random.random() < 0.5:
            name = random.choice(names)
            calls = [call(name) for _ in range(random.choice([1, 1, 1, 2]))]
            messages.append({"role": "assistant", "tool_calls": calls})
            if random.random() < 0.7:
                messages[-1]["content"] = random.choice(["", "I look.", None])
            for one in calls:
                answer = {"role": "tool", "content": random.choice([text(), "{\"t\": 21}"])}
                if random.random() < 0.7:
                    answer["name"] = name
                if "id" in one:
                    answer["tool_call_id"] = one["id"]
                messages.append(answer)
        messages.append({"role": "assistant", "content": content()})
        if random.random() < 0.2:
            messages[-1][random.choice(["reasoning_content", "thinking"])] = random.choice(["Let me see.", "\nHm.\n\n", ""])
    if random.random() < 0.15:
        messages.pop()
    if random.random() < 0.05:
        messages.append({"role": random.choice(["assistant", "user", "narrator"]), "content": text()})
    return {"messages": messages, "tools": tools, "chat_template_kwargs": random.choice(kwargs)}


def render(template, one, asks):
    try:
        text, spans = render_jinja_template([_normalize_chat_messages(one["messages"])], one["tools"], None, template, add_generation_prompt=asks,
                                            return_assistant_tokens_mask=True, **{**tokens, **one["chat_template_kwargs"]})
    except Exception as error:  # of Jinja, of Python, or of the template's own
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": text[0], "spans": spans[0]}


folders = [pathlib.Path(name) for name in sys.argv[2:]]
for package in ("trl", "transformers", "mistral_common", "megatron"):
    found = importlib.util.find_spec(package)
    folders += [pathlib.Path(place) for place in found.submodule_search_locations] if found else []
templates = {}
for folder in folders:
    for path in sorted(folder.rglob("*.jinja")):
        source = path.read_bytes().decode()
        if "messages" in source:
            templates[f"{folder.name}/{path.name}"] = source
conversations = [conversation() for _ in range(500)]
cases = []
for name, source in templates.items():
    for i in random.sample(range(len(conversations)), min(int(sys.argv[1]), len(conversations))):
        asks = random.random() < 0.5
        cases.append({"template": name, "conversation": i, "asks": asks, **render(source, conversations[i], asks)})
pathlib.Path("chats.json").write_text(json.dumps({"tokens": tokens, "templates": templates, "conversations": conversations, "cases": cases}))
