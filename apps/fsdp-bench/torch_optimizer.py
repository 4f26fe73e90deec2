# One step of torch.optim.AdamW(fused=True) whenever a line comes on standard input; answers with the seconds that it took.
# fsdp-bench puts a line before this text, which sets `threads` and `sizes`, the elements of each tensor.
import sys, time
import torch
torch.set_num_threads(threads)
tensors = [torch.nn.Parameter(0.02 * torch.randn(n)) for n in sizes]
for t in tensors: t.grad = 1e-3 * torch.randn_like(t)
optimizer = torch.optim.AdamW(tensors, lr=1e-4, fused=True)
print(torch.__version__, flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    optimizer.step()
    print(time.perf_counter() - begin, flush=True)
