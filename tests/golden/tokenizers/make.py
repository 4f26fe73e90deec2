#!/usr/bin/env python3
"""Writes the tokenizers of this folder, small ones with the parts that those of real models have, and expected.json: the ids that
Hugging Face's tokenizers give for the text in sample.txt, and the text that they make of these ids again.

    pip install tokenizers==0.23.3
    python3 make.py
"""
import json, os, random
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
random.seed(7)


def sample():
    """Bytes of every kind: prose, code, chess, spaces, symbols, other scripts, emoji, what looks like tokens, and no UTF-8."""
    prose = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; we'll see, I'M sure "
             "they've said it's DONE, he'd go. ſo it'ſ old. ")
    code = "for (int i = 0; i < 1024; ++i) {\n\tsum += a[i] * 3.14159; // naïve\n\n\n    return x->y(); }\r\n\r\n#define A_B 12345678\n"
    chess = '[Event "Rated game"]\n[Result "1-0"]\n\n1. e4 e5 2. Nf3 Nc6 3. Bb5+ a6 4. Bxc6 dxc6 5. O-O-O Qh4# 1-0\n\n'
    spaces = "a  b   c    d\t\te \n f\u00a0g\u3000h\u2028i\u180ej\u0085k\x0bl\x0cm\x1cn   \n  \n"
    scripts = "天地玄黄,宇宙洪荒。 こんにちは 안녕하세요 Привет мир é e\u0301 ﬁ Å Å ½ ² ١٢٣ नमस्ते ไทย"
    emoji = "😀😀 👨‍👩‍👧‍👦 ❤️🏽 🇩🇪 ok😀ok"
    tokens = "<s>hello</s> <|endoftext|><|im_start|>user <mask>  x hello othello <0x0A> ▁▁ <unk> <pad>  y"
    parts = [prose, code, chess, spaces, scripts, emoji, tokens]
    words = " ".join(parts).split(" ")
    mixed = " ".join(random.choice(words) for _ in range(400))
    broken = bytearray((prose + emoji + scripts).encode())
    for _ in range(60):
        broken[random.randrange(len(broken))] = random.randrange(256)
    return ("\n".join(parts) + mixed).encode() + bytes(broken) + b"\xf0\x9f"


def train(tokenizer, text, special, byte_level=True, size=500):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [])
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
qwen2 = llama3.replace(r"\p{N}{1,3}", r"\p{N}")
gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(split=None, normalizer=None, digits=False, prefix=False, **model):
    made = Tokenizer(models.BPE(**model))
    steps = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    steps += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    steps += [pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)]
    made.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    if normalizer:
        made.normalizer = normalizer
    made.decoder = decoders.ByteLevel()
    return made


def families(text):
    special = ["<|endoftext|>", "<|im_start|>"]
    yield "gpt2", train(byte_level(), text, special[:1])
    yield "prefix", train(byte_level(prefix=True), text, special)
    yield "smollm2", train(byte_level(digits=True), text, special)
    made = train(byte_level(split=llama3, ignore_merges=True), text, special)
    made.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A <|im_start|>",
                                                        special_tokens=[("<|endoftext|>", 0), ("<|im_start|>", 1)])
    yield "llama3", made
    yield "qwen2", train(byte_level(split=qwen2, normalizer=normalizers.NFC()), text, special)
    yield "gpt4o", train(byte_level(split=gpt4o), text, special)
    yield "nfkd", train(byte_level(normalizer=normalizers.Sequence(
        [normalizers.NFKD(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")])), text, special)
    # Of every kind of added token.
    made = train(byte_level(), text, special[:1])
    made.add_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<pad>", rstrip=True),
                     AddedToken("hello", single_word=True), AddedToken("▁"), "  ", "he", "heaven"])
    yield "added", made

    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    few = "".join(c for c in text if ord(c) < 0x250 or c == "▁")  # the others fall back to bytes
    train(made, few, ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)], byte_level=False, size=700)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    base = json.loads(made.to_str())
    base["pre_tokenizer"] = None
    base["added_tokens"] = [token for token in base["added_tokens"] if token["id"] < 3]
    base["post_processor"] = json.loads(processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]).__getstate__())
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    yield "llama2", Tokenizer.from_str(json.dumps(base))
    yield "mistral", Tokenizer.from_str(json.dumps(base | {"normalizer": None, "pre_tokenizer": metaspace}))
    always = metaspace | {"prepend_scheme": "always", "split": True}
    yield "metaspace", Tokenizer.from_str(json.dumps(base | {"normalizer": None, "pre_tokenizer": always, "decoder": always}))
    for name, fuses in [("unknown", True), ("unknown-each", False)]:
        model = base["model"] | {"byte_fallback": False, "fuse_unk": fuses}
        yield name, Tokenizer.from_str(json.dumps(base | {"model": model}))


    # Gemma's: spaces become signs, nothing is put before a text, and its pre-tokenizer looks for spaces that are gone by then;
    # runs of line ends and of signs are added tokens.
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    train(made, few, special + [f"<0x{byte:02X}>" for byte in range(256)], byte_level=False, size=700)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    described = json.loads(made.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["id"] < len(special)]
    made = Tokenizer.from_str(json.dumps(described))
    made.add_tokens([AddedToken(token, normalized=False) for token in ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>"]])
    yield "gemma", made


data = sample()
with open(f"{here}/sample.txt", "wb") as file:
    file.write(data)
text = data.decode(errors="replace")
expected = {"version": tokenizers.__version__, "tokenizers": {}}
for name, made in families(text):
    made.save(f"{here}/{name}.json", pretty=False)
    ids = made.encode(text, add_special_tokens=False).ids
    around = made.encode("x", add_special_tokens=True).ids
    expected["tokenizers"][name] = {"ids": ids, "text": made.decode(ids), "x": around, "size": made.get_vocab_size()}
with open(f"{here}/expected.json", "w") as file:
    json.dump(expected, file, separators=(",", ":"))
