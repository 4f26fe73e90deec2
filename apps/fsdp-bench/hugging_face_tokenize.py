# Tokenizes the text in the same pieces whenever a line comes on standard input; answers with seconds and tokens. fsdp-bench puts
# a line before this text, which sets `tokenizer`, `texts` and `sizes`, the bytes of each piece.
import os, sys, time
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import tokenizers
    encoder = tokenizers.Tokenizer.from_file(tokenizer)
except Exception as error:
    print("not run:", str(error).splitlines()[0], file=sys.stderr)
    sys.exit(1)
data = b"".join(open(text, "rb").read() for text in texts)
pieces, at = [], 0
for size in sizes:
    pieces.append(data[at:at + size].decode("utf-8", errors="replace"))
    at += size
print(tokenizers.__version__, flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    tokens = sum(len(encoder.encode(piece, add_special_tokens=False)) for piece in pieces)
    print(time.perf_counter() - begin, tokens, flush=True)
