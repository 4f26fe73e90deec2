"""What Hugging Face's tokenizers, SentencePiece and Megatron make of texts and of our files; python_text.cpp compares.

    text_in_python.py --probe         says which of them this Python has; exits with 77 without Hugging Face's tokenizers
    text_in_python.py ids FOLDER      a quarter of a megabyte of text of each kind, texts/KIND.txt, and for each tokenizer of FOLDER its ids of
                                      each text, ids/TOKENIZER-KIND.bin (int32)
    text_in_python.py folders DATA    folders.json: random tokenizers as folders, and what AutoTokenizer makes of them
    text_in_python.py megatron-write  data sets NAME.bin and NAME.idx, and what is in them, NAME.json
    text_in_python.py megatron-read   ours.bin and ours.idx hold the documents of ours.json, or it fails
"""

import importlib.util
import json
import pathlib
import random
import shutil
import subprocess
import sys

has = {name: importlib.util.find_spec(name) is not None for name in ("tokenizers", "numpy", "sentencepiece", "megatron", "transformers")}
if sys.argv[1] == "--probe":
    print("there: " + ", ".join(name for name, there in has.items() if there))
    sys.exit(0 if has["tokenizers"] and has["numpy"] else 77)

import numpy
import tokenizers

here = pathlib.Path(__file__).resolve().parent
size = 1 << 18
random.seed(3)


def prose():
    if shutil.which("bible"):
        return subprocess.run(["bible", "-f", "Gen1:1-Rev99"], capture_output=True, check=True).stdout
    readme = (here.parent.parent / "README.md").read_bytes()
    return readme * (size // len(readme) + 1)


def code():
    files = sorted(path for kind in ("cpp", "hpp", "py", "txt") for path in (here.parent.parent / "lib").rglob("*." + kind))
    return b"".join(path.read_bytes() for path in files)


def chess():
    move = lambda: random.choice("KQRBN abcdefgh").strip() + random.choice(["", "x"]) + random.choice("abcdefgh") + random.choice("12345678")
    game = lambda n: "".join(f"{i + 1}. {move()} {move()}{random.choice(['', '+', '#', '!?', ' {[%clk 0:03:00]}'])} " for i in range(n))
    return "".join(f'[Event "Rated game"]\n[WhiteElo "{random.randrange(800, 2800)}"]\n\n{game(random.randrange(8, 60))}1/2-1/2\n\n'
                   for _ in range(3000)).encode()


def characters(ranges, words, most):
    one = lambda: "".join(chr(random.randrange(*random.choice(ranges))) for _ in range(random.randint(1, most)))
    return "".join(random.choice([one(), one(), random.choice(words)]) + random.choice(["", " ", "  ", "\n"]) for _ in range(150000)).encode()


def emoji():
    return characters([(0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00), (0x2600, 0x27C0), (0x1F1E6, 0x1F200),
                       (0x1F3FB, 0x1F400), (0x200D, 0x200E), (0xFE0F, 0xFE10)], ["ok", "I'm", "👨‍👩‍👧‍👦", "❤️", "5"], 4)


def cjk():
    return characters([(0x4E00, 0x9FFF), (0x3041, 0x30FF), (0xAC00, 0xD7A4), (0x3400, 0x4DB0), (0x20000, 0x2A6D0), (0x3000, 0x3020)],
                      ["。", ",", "1980年", "the", "「", "」", "e\u0301"], 9)


def broken():
    data = bytearray((prose()[: size // 2] + emoji()[: size // 2] + cjk())[: size * 5 // 4])
    for _ in range(size // 40):
        data[random.randrange(256, len(data))] = random.randrange(1, 256)  # without bytes of 0, which no text has
    return bytes(data)


def every():
    """Every character that has a meaning but 0, each next to a letter and a mark, after words that make it a text."""
    all_of_them = "".join(chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000)
    known = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\p{Cn}\p{Co}]"), "removed").pre_tokenize_str(all_of_them)
    return b"The quick brown fox. " * 20 + "".join(f"a{c}\u0316!{c} " for piece, _ in known for c in piece).encode()


def write_ids(folder):
    for name in ("texts", "ids"):
        pathlib.Path(name).mkdir()
    texts = {}
    for kind in (prose, code, chess, emoji, cjk, broken, every):
        data = kind()
        assert len(data) > size, (kind.__name__, len(data))
        data = data if kind is every else data[:size]  # this may cut the last character
        texts[kind.__name__] = data
        pathlib.Path("texts", kind.__name__ + ".txt").write_bytes(data)

    def save(name, kind, ids):
        numpy.array(ids, dtype="<i4").tofile(pathlib.Path("ids", f"{name}-{kind}.bin"))

    for path in sorted(folder.glob("*.json")):
        if "added_tokens" not in json.loads(path.read_text()):
            continue
        made = tokenizers.Tokenizer.from_file(str(path))
        encoded = made.encode_batch([data.decode(errors="replace") for data in texts.values()], add_special_tokens=False)
        for kind, of_it in zip(texts, encoded):
            save(path.name, kind, of_it.ids)
    if has["sentencepiece"]:
        import sentencepiece

        made = sentencepiece.SentencePieceProcessor(model_file=str(folder / "bpe.model"))
        for kind, data in texts.items():
            save("bpe.model", kind, made.encode(data.decode(errors="replace")))


def megatron_write():
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for name, dtype, most in (("theirs", numpy.uint16, 65000), ("theirs-wide", numpy.int32, 100000)):
        builder = IndexedDatasetBuilder(name + ".bin", dtype=dtype)
        documents = [[random.randrange(most) for _ in range(random.randint(1, 40))] for _ in range(300)]
        for document in documents:
            builder.add_document(numpy.array(document), [len(document)])
        builder.finalize(name + ".idx")
        pathlib.Path(name + ".json").write_text(json.dumps(documents))


def megatron_read():
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    ours = IndexedDataset("ours")
    wanted = json.loads(pathlib.Path("ours.json").read_text())
    assert ours.document_indices.tolist() == list(range(len(wanted) + 1)), ours.document_indices
    assert [ours[i].tolist() for i in range(len(ours))] == wanted
    print(f"{len(wanted)} documents of ours, {ours[0].dtype}")


def write_folders(data):
    subprocess.run([sys.executable, data / "make_folders.py", "folders.json", str(random.randrange(1 << 30)), "90"], check=True)


{"folders": lambda: write_folders(pathlib.Path(sys.argv[2])), "ids": lambda: write_ids(pathlib.Path(sys.argv[2])),
 "megatron-write": megatron_write, "megatron-read": megatron_read}[sys.argv[1]]()
