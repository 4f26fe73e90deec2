# PyTorch's distributed checkpoints (DCP), measured beside ours: runs whenever a line comes on standard input, and answers with a
# line of JSON. fsdp-bench puts two lines before this text, which set `ranks`, `threads`, `folder` and `shapes` (by name).
# Products of matrices stand for training; as with ours, what counts is how many of them a save keeps from being done.
import json, multiprocessing, os, resource, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def clock():
    dist.barrier()
    return time.perf_counter()

def path(name):
    return os.path.join(folder, name)

def tensors(rank, size, name):
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(path(name)), rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    make = lambda shape: distribute_tensor(torch.rand(shape), mesh, [Shard(0)], src_data_rank=None)
    return {state: {name: make(shape) for name, shape in shapes.items()} for state in ["parameters", "exp_avg", "exp_avg_sq"]}

def forget():
    for where, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(where, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

def write(rank, size):
    state = tensors(rank, size, "meet")
    for turn in ["first", "second"]:  # the first call starts threads
        begin = clock()
        dcp.save(state, checkpoint_id=path("dcp-" + turn))
        save = clock() - begin
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    begin = clock()
    for _ in range(20): torch.mm(a, b)
    alone = (time.perf_counter() - begin) / 20
    for turn in ["first", "second"]:
        begin = clock()
        future = dcp.async_save(state, checkpoint_id=path("dcp-async-" + turn))
        returned = time.perf_counter() - begin
        count = 0
        while not future.done():
            torch.mm(a, b)
            count += 1
        future.result()
        lost = time.perf_counter() - begin - count * alone
    dcp.save({"parameters": state["parameters"]}, checkpoint_id=path("dcp-parameters"))
    return {"save": save, "async_returns": returned, "async_loses": lost}

def read(rank, size):
    state = tensors(rank, size, "meet-again")
    if rank == 0: forget()
    begin = clock()
    dcp.load(state, checkpoint_id=path("dcp-second"))
    return {"load": clock() - begin}

def consolidate(rank, size):
    torch.set_num_threads(threads)
    forget()
    begin = time.perf_counter()
    dcp_to_torch_save(path("dcp-parameters"), path("dcp.pt"))
    seconds = time.perf_counter() - begin
    return {"consolidate": seconds, "consolidate_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}

def rank_main(function, rank, size, results):
    os.dup2(2, 1)  # some of its libraries are talkative
    result = function(rank, size)
    if rank == 0: results.put(result)
    if dist.is_initialized(): dist.destroy_process_group()

def run(function, size):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=rank_main, args=(function, rank, size, results)) for rank in range(size)]
    for process in processes: process.start()
    for process in processes: process.join()
    if any(process.exitcode for process in processes): sys.exit(1)
    return results.get()

syncs = getattr(dcp.FileSystemWriter(folder), "sync_files", False)
print(torch.__version__, flush=True)
for line in sys.stdin:
    os.makedirs(folder, exist_ok=True)
    print(json.dumps({**run(write, ranks), **run(read, ranks + 1), **run(consolidate, 1), "fsync": syncs}), flush=True)
