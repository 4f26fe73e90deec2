#!/usr/bin/env python3
"""Writes folders.json: tokenizers as folders, of the files here and of random others that go with them, and what transformers'
AutoTokenizer makes of them: its ids of some texts, of "x" with what it puts around texts, its size, its special tokens, and the
text of random ids without special tokens.

    pip install transformers==5.24.0 sentencepiece protobuf
    python3 make_folders.py [OUT [SEED [COUNT]]]

Without protobuf there are none with a tokenizer.model: AutoTokenizer reads that by it.
"""
import importlib.util, json, os, pathlib, random, shutil, sys, tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
os.environ["HF_HUB_OFFLINE"] = "1"
import tokenizers, transformers
from transformers import AutoTokenizer

here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else here / "folders.json")
random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
count = int(sys.argv[3]) if len(sys.argv) > 3 else 60
has_protobuf = importlib.util.find_spec("google") is not None and importlib.util.find_spec("google.protobuf") is not None

texts = ["In the beginning<|tool|> God <x> hello othello <|im_end|>\n<s>the [INST] the</s> <mask> x <img>  <pad> <|endoftext|>a",
         "  a  b ▁c <|im_start|>user\nthe 1980 naïve e\u0301 ﬁ Å ½ ① ｆｕｌｌ <unk> 天地玄黄 😀👨‍👩‍👧 \u00a0\u200b z\r\n\r\nGod "]
contents = ["<|tool|>", "<|im_end|>", "<mask>", "<x>", "hello", "<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>",
            " the", "<img>", "God", "[INST]"]
byte_level = ["PreTrainedTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "LlamaTokenizer", None]
by_characters = ["PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", None]
kinds = [("gpt2", "tokenizer.json", byte_level), ("prefix", "tokenizer.json", byte_level), ("qwen2", "tokenizer.json", byte_level),
         ("added", "tokenizer.json", byte_level), ("llama2", "tokenizer.json", by_characters), ("mistral", "tokenizer.json", by_characters),
         ("gpt2", "vocab.json", ["GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer"]),
         ("qwen2", "vocab.json", ["GPT2Tokenizer", "Qwen2Tokenizer"]),
         ("xglm", "tokenizer.json", ["XGLMTokenizer", "PreTrainedTokenizerFast", None])]
if has_protobuf:
    kinds += [("bpe", "tokenizer.model", by_characters)] * 2 + [("unigram", "tokenizer.model", ["PreTrainedTokenizerFast", None])]


def make_xglm():
    """A Unigram tokenizer as XGLM's, whose table of characters is small."""
    import io, sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    rules = [("e\u0301", "é"), ("½", "1⁄2"), ("①", "1"), ("ﬁ", "fi"), ("\u00a0", " "), ("\u200b", ""), ("\n", " "), ("\t", " "), ("\r", "")]
    rules += [(chr(c), chr(c - 0xFEE0)) for c in range(0xFF21, 0xFF5B)]
    code = lambda text: " ".join(f"{ord(c):04X}" for c in text)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("".join(f"{code(a)}\t{code(b)}\n" for a, b in rules))
        file.flush()
        model = io.BytesIO()
        lines = [line for line in (here / "sample.txt").read_text(errors="replace").split("\n") for _ in range(5) if line.strip()]
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, model_type="unigram", vocab_size=600,
                                                 minloglevel=2, hard_vocab_limit=False, normalization_rule_tsv=file.name)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(p.piece, p.score) for p in proto.pieces[3:]]
    pieces += [(f"<madeupword{i}>", 0.0) for i in range(7)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3, False))
    made.normalizer = tokenizers.normalizers.Sequence([
        tokenizers.normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
        tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    made.save(str(here / "xglm.json"), pretty=False)


if not (here / "xglm.json").exists():
    make_xglm()


def one_in(n):
    return random.random() * n < 1


def token(content):
    all_of_it = {"content": content, "lstrip": one_in(5), "rstrip": one_in(5), "normalized": one_in(3), "single_word": one_in(9),
                 "special": not one_in(3)}
    return {key: value for key, value in all_of_it.items() if key == "content" or not one_in(6)}


def names(most):
    """Some names of tokens, in any order."""
    keys = random.sample(["video_token", "image_token", "audio_token", "pad_token"], random.randrange(1, most))
    return {key: random.choice(contents) for key in keys}


def list_of_tokens():
    return [one if not one_in(4) else token(one) | {"__type": "AddedToken"} for one in random.sample(contents, random.randrange(3))]


def folder(path, base, main, classes):
    """Writes the files; returns those that are of this folder alone."""
    if main == "tokenizer.model":
        shutil.copy(here / f"{base}.model", path / main)
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=str(path / main))
        vocabulary, added = {model.id_to_piece(i): i for i in range(model.get_piece_size())}, []
    else:
        described = json.loads((here / f"{base}.json").read_text())
        of_model, added = described["model"]["vocab"], described["added_tokens"]
        vocabulary = {piece[0]: i for i, piece in enumerate(of_model)} if isinstance(of_model, list) else dict(of_model)
        if main == "vocab.json":
            (path / main).write_text(json.dumps(vocabulary))
            merges = [m if isinstance(m, str) else " ".join(m) for m in described["model"]["merges"]]
            (path / "merges.txt").write_text("\n".join(["#version: 0.2"] + merges) + "\n")
            added = []
        else:
            shutil.copy(here / f"{base}.json", path / main)
            vocabulary |= {one["content"]: one["id"] for one in added}

    def ids(most):
        for content in random.sample(contents, random.randrange(1, most)):
            yield content, vocabulary.setdefault(content, max(vocabulary.values()) + 1)

    config, files = {}, {}
    if name := random.choice(classes):
        config["tokenizer_class"] = name
    if one_in(2):
        config["added_tokens_decoder"] = {str(id): token(content) for content, id in ids(5)}
        for one in added:
            if not one_in(6):
                config["added_tokens_decoder"].setdefault(str(one["id"]), {k: v for k, v in one.items() if k != "id"})
    if one_in(2):
        files["added_tokens.json"] = dict(ids(4)) if "added_tokens_decoder" not in config else {
            one["content"]: int(id) for id, one in config["added_tokens_decoder"].items()}
    known = [content for content in contents if content in vocabulary]
    for key in ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "mask_token"):
        if one_in(2) and known:
            config[key] = random.choice(contents if one_in(9) else known)
            if one_in(9):
                config[key] = token(config[key]) | {"__type": "AddedToken"}
        elif one_in(12):
            config[key] = None
    if one_in(3):
        config[random.choice(["additional_special_tokens", "extra_special_tokens"])] = list_of_tokens()
    if one_in(5):
        config |= {key: value for key, value in names(4).items() if key != "pad_token"}
    if one_in(5):
        config["extra_special_tokens"] = names(4)
    if one_in(9):
        config["model_specific_special_tokens"] = names(4)
    if one_in(9):
        config["image_token"] = token(random.choice(contents)) | {"__type": "AddedToken"}
    for key in ("add_bos_token", "add_eos_token", "add_prefix_space", "legacy"):
        if one_in(3):
            config[key] = one_in(2)
    if base == "unigram":  # whose table of characters may change the first word
        config.pop("legacy", None)
    if one_in(20) and base != "added":  # tokenizers loses a character where such a token is part of a word
        config["split_special_tokens"] = True
    if one_in(3):
        files["special_tokens_map.json"] = {key: random.choice([random.choice(known), token(random.choice(known))])
                                            for key in ("bos_token", "eos_token", "pad_token") if known and one_in(2)}
        if one_in(3):
            files["special_tokens_map.json"]["additional_special_tokens"] = list_of_tokens()
        if one_in(3):
            files["special_tokens_map.json"] |= names(4)
        if one_in(4):
            files["special_tokens_map.json"]["extra_special_tokens"] = names(4)
    files["tokenizer_config.json"] = config
    if one_in(3):
        files["config.json"] = {"model_type": random.choice(["llama", "mistral"])}
    if "tokenizer_class" not in config and main == "tokenizer.json":
        byte_kinds = ["qwen2_moe", "qwen3_moe", "olmo", "gptj", "granite", "llama"]
        files["config.json"] = {"model_type": random.choice(["llama"] if base in ("llama2", "mistral", "xglm") else byte_kinds)}
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return files


made = []
while len(made) < count:
    base, main, classes = kinds[len(made) % len(kinds)]
    with tempfile.TemporaryDirectory() as name:
        files = folder(pathlib.Path(name), base, main, classes)
        try:
            auto = AutoTokenizer.from_pretrained(name)
        except Exception:  # such a folder is of no use to anybody
            continue
        decoder = files["tokenizer_config.json"].get("added_tokens_decoder")
        said = {one["content"]: int(id) for id, one in decoder.items()} if decoder is not None else files.get("added_tokens.json", {})
        if any(auto.convert_tokens_to_ids(content) != id for content, id in said.items()):
            continue  # refused by us
        decoded = [random.randrange(len(auto)) for _ in range(50)]
        made.append({"base": base, "main": main, "files": files, "size": len(auto),
                     "decoded": decoded, "text": auto.decode(decoded, skip_special_tokens=True),
                     "special": {k: v for k, v in auto.special_tokens_map.items() if isinstance(v, str)},
                     "x": auto("x")["input_ids"], "ids": [auto(text, add_special_tokens=False)["input_ids"] for text in texts]})
with open(out, "w") as file:
    file.write('{"version": "%s", "texts": %s, "folders": [\n' % (transformers.__version__, json.dumps(texts)))
    file.write(",\n".join(json.dumps(one, separators=(",", ":")) for one in made) + "\n]}\n")
