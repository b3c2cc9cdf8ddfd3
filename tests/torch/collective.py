"""Process groups of PyTorch's own NCCL backend, on the fake NCCL, in one of several ways.

    collective.py follow      collectives in three groups; after a while, what PyTorch says of them
    collective.py gil         the same with one rank, which then keeps the GIL to its end
    collective.py skip        rank 1 leaves an all_reduce out; its peers wait for it for ever
    collective.py brief       one group, three collectives, three seconds

Each rank's last line is `expected ` and a JSON object; in `skip` it comes before the wait.
"""

import ctypes
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

# The recorder looks some seconds after a communicator was made, and then once a second.
UNTIL_LOOKED_AT = 9.0


def dump():
    from torch._C._distributed_c10d import _dump_nccl_trace_json

    return json.loads(_dump_nccl_trace_json(includeCollectives=False))


def is_over(said):
    """Every collective that was begun is over."""
    groups = said["pg_status"].values()
    return all(of["last_enqueued_collective"] == of["last_completed_collective"] for of in groups)


def expect(**more):
    line = f"expected {json.dumps({'rank': dist.get_rank()} | more)}\n"
    os.write(1, line.encode())  # in one piece: the ranks share a pipe


def main():
    way = sys.argv[1]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with its launcher, though it hangs
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    tensor = torch.ones(1000, device=device)
    groups = [dist.group.WORLD]
    if way == "follow":
        groups += [dist.new_group([0, 1]), dist.new_group([1])]
    groups = [group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER]
    for count, group in enumerate(groups, start=3):
        for _ in range(count):
            dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    if way == "follow":
        time.sleep(UNTIL_LOOKED_AT)
        expect(dump=dump(), names=[group.group_name for group in groups])
    elif way == "gil":
        while not is_over(said := dump()):  # until PyTorch's watchdog has seen it
            time.sleep(0.05)
        begun = time.time_ns()
        ctypes.PyDLL(None).usleep(int(1e6 * UNTIL_LOOKED_AT))  # holds the GIL
        expect(dump=said, names=["0"], begun=begun, ended=time.time_ns())
    elif way == "skip":
        time.sleep(1)
        if rank != 1:
            dist.all_reduce(tensor)
        expect()
        if rank == 1:
            time.sleep(300)
        torch.cuda.synchronize()
    else:
        time.sleep(3)  # the recorder's thread has its turn, and it is too early for a look
        expect()
    os._exit(0)


main()
