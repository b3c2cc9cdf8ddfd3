"""A program without PyTorch, in which a stand-in for its flight recorder is asked by the recorder.

    looks.py USER STANDIN KIND      the fake's nccl/libnccluser.so, a libtorch_cuda.so, its answer

It makes a communicator, waits until it has been looked at, and exits in an orderly way.
"""

import ctypes
import os
import sys
import time

process = ctypes.CDLL(None)
user, standin = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2], os.RTLD_LOCAL)
standin.answer(int(sys.argv[3]))
memory, communicator = ctypes.c_void_p(), ctypes.c_void_p()
assert process.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0
assert user.use_init_config(ctypes.byref(communicator)) == 0
deadline = time.monotonic() + 60
while standin.asked_so_often() == 0 and time.monotonic() < deadline:
    time.sleep(0.1)
time.sleep(1)
print("asked", standin.asked_so_often() % 100, flush=True)
