# Greedy answers of transformers' generate() on a model of random weights, whenever a line comes on standard input; answers with
# the seconds for the prompts and one token, and for the prompts and all tokens. bench-generate puts a line before this text, which
# sets `threads`, `config` (a config.json), `dtype`, `batch`, `prompt` and `new`, the numbers of texts, of tokens and of new ones.
import json, sys, time
import torch, transformers
torch.set_num_threads(threads)
torch.manual_seed(1)
settings = transformers.AutoConfig.for_model(**json.loads(config))
model = transformers.AutoModelForCausalLM.from_config(settings).to(getattr(torch, dtype)).eval()
ids = torch.randint(0, settings.vocab_size, (batch, prompt))
def seconds(count):
    begin = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=count, max_new_tokens=count,
                   pad_token_id=0)
    return time.perf_counter() - begin
print(transformers.__version__ + ", torch " + torch.__version__, flush=True)
for line in sys.stdin:
    print(seconds(1), seconds(new), flush=True)
