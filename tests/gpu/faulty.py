"""A transformer under DDP or FSDP2 on real GPUs, with one of a few faults, or with a benign pattern.

    torchrun --nproc-per-node 4 tests/gpu/faulty.py CASE [--steps 600]

The cases are the functions at the end of this file that take a `Job`; each says what it is. `ONSET n` is
printed when the step begins at which a fault is there for the first time. The line on which memory is
allocated that stays carries the comment CULPRIT and the name of its case.
"""

import argparse
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from train import Transformer

HEADS, LAYERS, VOCABULARY = 8, 4, 1024
BATCH, SEQUENCE = 4, 512
MIB = 1 << 20


class Job:
    """What all cases share: the model, its optimizer, and a step."""

    def __init__(self, options, sharded):
        self.options, self.rank, self.ranks = options, dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        model = Transformer(options.features, HEADS, LAYERS).to(self.device)
        if sharded:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            for block in model.blocks:
                fully_shard(block, mp_policy=policy)
            self.model = fully_shard(model, mp_policy=policy)
        else:
            self.model = DistributedDataParallel(model, device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.losses = []

    def steps(self):
        """Numbers from 1. Nothing takes time on the fake runtime, so a step has a least duration."""
        for step in range(1, self.options.steps + 1):
            started = time.monotonic()
            yield step
            time.sleep(max(0.0, self.options.step_ms / 1000 - (time.monotonic() - started)))

    def tokens(self, length=SEQUENCE, batch=BATCH):
        return torch.randint(VOCABULARY, (batch, length + 1), device=self.device)

    def learn(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, length=SEQUENCE):
        tokens = self.tokens(length)
        logits = self.model(tokens[:, :-1])
        self.learn(F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))

    @torch.no_grad()
    def evaluate(self, batches, keep):
        self.model.eval()
        for _ in range(batches):
            logits = self.model(self.tokens(batch=2 * BATCH)[:, :-1])
            scores = torch.softmax(logits.float(), dim=-1)  # CULPRIT eval_leak
            keep.append(scores)
        self.model.train()

    def onset(self, step):
        print(f"ONSET {step}", flush=True)


def retained_loss(job):
    """DDP. One rank keeps the loss of every element, with its graph: 8 MiB a step."""
    kept, guilty = [], job.ranks // 2
    target = torch.zeros(BATCH, SEQUENCE, VOCABULARY, device=job.device)
    for step in job.steps():
        logits = job.model(job.tokens()[:, :-1])
        losses = F.smooth_l1_loss(logits, target, reduction="none")  # CULPRIT retained_loss
        if job.rank == guilty and step >= job.options.onset:
            kept.append(losses)
            if step == job.options.onset:
                job.onset(step)
        job.learn(losses.mean())


def eval_leak(job):
    """FSDP2. All ranks keep what each evaluation predicts: 256 MiB every 20 steps, nothing in between."""
    predictions = []
    for step in job.steps():
        job.train()
        if step % 20 == 0:
            job.evaluate(16, predictions)
            if step == 20 and job.rank == 0:
                job.onset(step)


def fragmentation(job):
    """DDP, without expandable segments. Each batch needs buffers a little longer than any before, and small
    tensors that live long lie in between: about 40 MiB more are reserved with each step, on all ranks."""
    chance, megabyte = random.Random(job.rank), MIB // 4
    recent = [torch.empty(4 * megabyte, device=job.device) for _ in range(128)]
    for step in job.steps():
        if step == job.options.onset and job.rank == 0:
            job.onset(step)
        longer = max(0, step - job.options.onset) * megabyte // 4
        buffers = [torch.empty(128 * megabyte + longer, device=job.device) for _ in range(4)]
        del buffers
        recent[chance.randrange(len(recent))] = torch.empty(4 * megabyte, device=job.device)
        job.train()


def process_groups(job):
    """FSDP2. Every 15 steps all ranks make a process group and forget to destroy it: what its communicator
    takes from the device, PyTorch's allocator does not know. Outside of it, growth that begins with the job
    is taken for a pool that fills, so it begins late enough."""
    onset = max(job.options.onset, 210)
    for step in job.steps():
        job.train()
        if step >= onset and step % 15 == 0:
            score = torch.zeros(1, device=job.device)
            dist.all_reduce(score, group=dist.new_group(backend="nccl"))  # CULPRIT process_groups
            if step == onset and job.rank == 0:
                job.onset(step)


def pinned_saves(job):
    """FSDP2. Every 40 steps one rank copies 64 MiB to pinned memory of the host, saves them,
    and keeps the copy."""
    copies, guilty, onset = [], job.ranks // 2, 120
    state = torch.randn(64 * MIB // 4, device=job.device)
    for step in job.steps():
        job.train()
        if step >= onset and step % 40 == 0 and job.rank == guilty:
            copy = torch.empty_like(state, device="cpu", pin_memory=True)  # CULPRIT pinned_saves
            copies.append(copy.copy_(state))
            torch.save({"state": copy}, os.path.join(tempfile.gettempdir(), f"saved-{os.getpid()}"))
            if step == onset:
                job.onset(step)


def collapsing_router(job):
    """DDP. The router of a mixture of experts sends ever more of the tokens to the expert of one rank, and the
    fewer to the others: what a rank holds during its step is what it was sent."""
    onset, favoured, tokens = job.options.onset, job.ranks // 2, 8192
    expert = torch.nn.Linear(job.options.features, 4 * job.options.features, device=job.device)
    for step in job.steps():
        if step == onset and job.rank == 0:
            job.onset(step)
        share = 1 + (job.ranks - 1) * min(1.0, max(0, step - onset) / 200) * 0.9
        others = (job.ranks - share) / max(1, job.ranks - 1)
        sent = int(tokens * (share if job.rank == favoured else others))
        routed = torch.randn(sent, job.options.features, device=job.device)
        expert(routed).square().mean().backward()
        expert.zero_grad()
        del routed
        job.train()


def variable_lengths(job):
    """DDP. Every rank draws lengths of its own. Benign."""
    lengths = random.Random(job.rank)
    for _ in job.steps():
        job.train(min(2 * SEQUENCE, 64 + int(lengths.lognormvariate(5.3, 0.7))))


def checkpoint_and_eval(job):
    """FSDP2. An evaluation every 40 steps whose predictions live until its end, and every 100 steps the whole
    model is gathered and moved to rank 0's host. Benign."""
    for step in job.steps():
        job.train()
        if step % 40 == 0:
            job.evaluate(8, [])
        if step % 100 == 0:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            get_model_state_dict(job.model, options=options)


@torch.no_grad()
def serving(job):
    """No steps: every rank answers requests. One keeps the keys and values of each conversation, 8 MiB."""
    kept, guilty = [], job.ranks // 2
    shape = (2, LAYERS, SEQUENCE, job.options.features)
    for _ in range(5):
        for _ in job.steps():
            job.model(job.tokens()[:, :-1])
            cache = torch.empty(shape, dtype=torch.bfloat16, device=job.device)  # CULPRIT serving
            if job.rank == guilty:
                kept.append(cache)


# Each case, and whether its model is sharded.
CASES = {
    retained_loss: False,
    eval_leak: True,
    fragmentation: False,
    process_groups: True,
    pinned_saves: True,
    collapsing_router: False,
    variable_lengths: False,
    checkpoint_and_eval: True,
    serving: False,
}


def main():
    by_name = {case.__name__: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=by_name)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--onset", type=int, default=60, metavar="STEP", help="of faults that can wait")
    parser.add_argument("--features", type=int, default=1024, help="width of the model")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step")
    parser.add_argument("--ddp-backend", default="nccl", help="gloo where NCCL moves nothing, as on the fake")
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    backend = "nccl" if CASES[by_name[options.case]] else options.ddp_backend
    dist.init_process_group(backend)  # without a device, so that each group has a communicator of its own
    torch.manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        properties = torch.cuda.get_device_properties(device)
        print(f"DEVICE {properties.name}, {properties.total_memory >> 20} MiB, torch {torch.__version__}")
    case = by_name[options.case]
    started = time.monotonic()
    case(Job(options, sharded=CASES[case]))
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        per_step = (time.monotonic() - started) / options.steps
        print(f"done: {options.steps} steps, {1000 * per_step:.1f} ms a step", flush=True)
    dist.barrier(device_ids=[device.index] if backend == "nccl" else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
