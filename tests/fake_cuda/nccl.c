// A libnccl.so.2 whose communicators take device memory, as NCCL's do: from the driver, where no
// hook on the CUDA runtime sees it.
//
// A communicator takes FAKENCCL_BYTES (16 MiB) in two ways and gives them back when it is destroyed.
// Nothing is communicated. It is not for PyTorch, which needs the real one: tests/torch/nccl.py
// reaches it through nccl_user.c, so that the calls go through the dynamic linker like PyTorch's.
#include "abi.h"
#include "fake.h"

#include <stdlib.h>

#define NCCL_SYSTEM_ERROR 2

int cuMemAlloc_v2(uintptr_t *address, size_t bytes);
int cuMemFree_v2(uintptr_t address);
int cuMemRelease(uint64_t handle);
int cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation_properties *properties,
                uint64_t flags);

struct unique_id { // ncclUniqueId
    char internal[128];
};

struct communicator {
    uintptr_t buffer;
    uint64_t handle;
    int rank;
};

static void (*during)(void);

// Has a function called while a communicator is being made: other threads do not stand still then.
void fake_nccl_during(void (*function)(void)) { during = function; }

static size_t communicator_bytes(void) {
    const char *text = getenv("FAKENCCL_BYTES");
    return text ? strtoull(text, NULL, 10) : 16u << 20;
}

static int make(struct communicator **comm, int rank) {
    struct allocation_properties properties = {
        .type = 1, .location = {.type = 1, .id = fake_current_device()}}; // pinned, on this device
    size_t half = communicator_bytes() / 2;
    struct communicator *made = calloc(1, sizeof *made);
    *comm = NULL;
    if (!made)
        return NCCL_SYSTEM_ERROR;
    made->rank = rank;
    if (cuMemAlloc_v2(&made->buffer, half) || cuMemCreate(&made->handle, half, &properties, 0)) {
        if (made->buffer)
            cuMemFree_v2(made->buffer);
        free(made);
        return NCCL_SYSTEM_ERROR;
    }
    if (during)
        during();
    *comm = made;
    return 0;
}

int ncclCommInitRank(struct communicator **comm, int ranks, struct unique_id id, int rank) {
    return id.internal[127] == 'z' ? make(comm, rank) : NCCL_SYSTEM_ERROR;
}

int ncclCommInitRankConfig(struct communicator **comm, int ranks, struct unique_id id, int rank,
                           void *config) {
    return ncclCommInitRank(comm, ranks, id, rank);
}

int ncclCommSplit(struct communicator *of, int color, int key, struct communicator **comm,
                  void *config) {
    return make(comm, key);
}

int ncclCommDestroy(struct communicator *comm) {
    cuMemFree_v2(comm->buffer);
    cuMemRelease(comm->handle);
    free(comm);
    return 0;
}

int ncclCommAbort(struct communicator *comm) { return ncclCommDestroy(comm); }

int ncclMemAlloc(void **address, size_t bytes) {
    return cuMemAlloc_v2((uintptr_t *)address, bytes) ? NCCL_SYSTEM_ERROR : 0;
}

int ncclMemFree(void *address) { return cuMemFree_v2((uintptr_t)address); }
