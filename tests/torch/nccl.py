"""Makes communicators of a fake NCCL, without PyTorch, and says how much they hold.

    nccl.py LIBRARY      the fake's nccl/libnccluser.so

Another thread takes device memory while a communicator is made: that is not the communicator's.
The last line is `expected ` and a JSON object; then it ends at once.
"""

import ctypes
import json
import os
import sys
import threading

MIB = 1 << 20
process = ctypes.CDLL(None)
user = ctypes.CDLL(sys.argv[1])
user.use_destroy.argtypes = user.use_abort.argtypes = user.use_free.argtypes = [ctypes.c_void_p]
user.use_split.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


def device_malloc(size):
    pointer = ctypes.c_void_p()
    assert process.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert process.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def comm_of(make, *arguments):
    comm = ctypes.c_void_p()
    assert make(*arguments, ctypes.byref(comm)) == 0 and comm.value
    return comm


passing = device_malloc(10 * MIB)


@ctypes.CFUNCTYPE(None)
def meanwhile():
    def other_thread():
        device_malloc(5 * MIB)
        assert process.cudaFree(passing) == 0

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()


nccl = ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_LAZY)
before = free_bytes()
first = comm_of(user.use_init_config)
comm_bytes = before - free_bytes()

nccl.fake_nccl_during(meanwhile)
second = ctypes.c_void_p()
assert user.use_init(ctypes.byref(second), ctypes.c_char(b"z")) == 0
nccl.fake_nccl_during(None)

third = comm_of(lambda comm: user.use_split(first, comm))
assert user.use_init(ctypes.byref(ctypes.c_void_p()), ctypes.c_char(b"a")) != 0, "it must refuse"
assert user.use_destroy(first) == 0
assert user.use_abort(third) == 0

buffers = [ctypes.c_void_p() for _ in range(2)]
for buffer in buffers:
    assert user.use_alloc(ctypes.byref(buffer), ctypes.c_size_t(3 * MIB)) == 0
assert user.use_free(buffers[0]) == 0

expected = {"nccl": comm_bytes + 3 * MIB, "live": 2, "malloc": 5 * MIB}
print("expected", json.dumps(expected), flush=True)
os._exit(0)
