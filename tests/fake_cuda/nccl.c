// A libnccl.so.2: communicators that take device memory, as NCCL's do, from the driver, where no hook
// on the CUDA runtime sees it; and collectives that move nothing, but are over only when all ranks
// have begun them.
//
// A communicator takes FAKENCCL_BYTES (16 MiB) in two ways and gives them back when it is destroyed.
// Its ranks meet in a file of FAKENCCL_FOLDER (/dev/shm), named by the id that PyTorch hands round;
// making one waits for all of them. A collective puts a gate into its stream (cudart_stream.c) that
// opens when every rank has begun as many as this one, or when the communicator is aborted.
//
// For PyTorch it is preloaded (FAKECUDA_NCCL=1); tests/torch/nccl.py reaches it through nccl_user.c,
// so that the calls go through the dynamic linker like PyTorch's. Sends and receives are collectives
// that do not wait. Not here: windows, registration, premultiplied sums, values.
#include "abi.h"
#include "fake.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NCCL_SYSTEM_ERROR 2
#define NCCL_INVALID_USAGE 5
#define NO_COLOR (-1)

#define RANKS_MAX 16
#define SPLITS_MAX 64

int cuMemAlloc_v2(uintptr_t *address, size_t bytes);
int cuMemFree_v2(uintptr_t address);
int cuMemRelease(uint64_t handle);
int cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation_properties *properties,
                uint64_t flags);
// Where libfakecudart.so is preloaded, as it is for PyTorch.
__attribute__((weak)) void fake_stream_gate(void *stream, struct fake_gate gate);

struct unique_id { // ncclUniqueId: the name of the meeting, and a 'z' at the end
    char internal[128];
};

// What all ranks of a communicator see; the file is zero at first.
struct meeting {
    _Atomic uint64_t begun[RANKS_MAX]; // collectives
    atomic_uint present;
    struct {
        _Atomic int colors[RANKS_MAX]; // plus two: zero is not said yet
    } splits[SPLITS_MAX];
};

struct communicator {
    uintptr_t buffer;
    uint64_t handle;
    int rank, ranks;
    struct meeting *meeting; // never unmapped: gates look at it
    struct unique_id id;
    unsigned splits;
    atomic_bool aborted;
};

static void (*during)(void);

// Has a function called while a communicator is being made: other threads do not stand still then.
void fake_nccl_during(void (*function)(void)) { during = function; }

static size_t communicator_bytes(void) {
    const char *text = getenv("FAKENCCL_BYTES");
    return text ? strtoull(text, NULL, 10) : 16u << 20;
}

// --- the ranks meet ----------------------------------------------------------------------------------

static struct meeting *meet(const struct unique_id *id) {
    const char *folder = getenv("FAKENCCL_FOLDER");
    char path[512];
    snprintf(path, sizeof path, "%s/fakenccl-%.100s", folder ? folder : "/dev/shm", id->internal);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct meeting)))
        return NULL;
    void *shared = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return shared == MAP_FAILED ? NULL : shared;
}

static void wait_for(const atomic_uint *count, unsigned least) {
    while (atomic_load(count) < least)
        usleep(1000);
}

static int make(struct communicator **comm, int ranks, struct unique_id id, int rank) {
    struct allocation_properties properties = {
        .type = 1, .location = {.type = 1, .id = fake_current_device()}}; // pinned, on this device
    size_t half = communicator_bytes() / 2;
    struct communicator *made = calloc(1, sizeof *made);
    *comm = NULL;
    if (!made || ranks > RANKS_MAX)
        return NCCL_SYSTEM_ERROR;
    *made = (struct communicator){.rank = rank, .ranks = ranks, .id = id};
    made->meeting = ranks > 1 ? meet(&id) : calloc(1, sizeof(struct meeting));
    if (!made->meeting || cuMemAlloc_v2(&made->buffer, half) ||
        cuMemCreate(&made->handle, half, &properties, 0)) {
        if (made->buffer)
            cuMemFree_v2(made->buffer);
        free(made);
        return NCCL_SYSTEM_ERROR;
    }
    if (during)
        during();
    atomic_fetch_add(&made->meeting->present, 1);
    wait_for(&made->meeting->present, (unsigned)ranks);
    *comm = made;
    return 0;
}

int ncclGetUniqueId(struct unique_id *id) {
    static atomic_uint count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 100, "%d-%lx%09lx-%u", (int)getpid(), (long)now.tv_sec, now.tv_nsec,
             atomic_fetch_add(&count, 1));
    id->internal[127] = 'z';
    return 0;
}

int ncclCommInitRank(struct communicator **comm, int ranks, struct unique_id id, int rank) {
    return id.internal[127] == 'z' ? make(comm, ranks, id, rank) : NCCL_SYSTEM_ERROR;
}

int ncclCommInitRankConfig(struct communicator **comm, int ranks, struct unique_id id, int rank,
                           void *config) {
    return ncclCommInitRank(comm, ranks, id, rank);
}

int ncclCommInitRankScalable(struct communicator **comm, int ranks, int rank, int ids,
                             struct unique_id *id, void *config) {
    return ncclCommInitRank(comm, ranks, *id, rank);
}

int ncclCommSplit(struct communicator *of, int color, int key, struct communicator **comm,
                  void *config) {
    if (!of) // out of nothing comes a communicator of one
        return make(comm, 1, (struct unique_id){{0}}, 0);
    unsigned split = of->splits++;
    if (split >= SPLITS_MAX)
        return NCCL_SYSTEM_ERROR;
    _Atomic int *colors = of->meeting->splits[split].colors;
    atomic_store(&colors[of->rank], color + 2);
    int rank = 0, ranks = 0;
    for (int other = 0; other < of->ranks; other++) {
        while (!atomic_load(&colors[other]))
            usleep(1000);
        bool is_one = atomic_load(&colors[other]) == color + 2;
        ranks += is_one;
        rank += is_one && other < of->rank;
    }
    *comm = NULL;
    if (color == NO_COLOR)
        return 0;
    struct unique_id id = of->id;
    size_t length = strnlen(id.internal, 100);
    snprintf(id.internal + length, 100 - length, ".%u.%d", split, color);
    return make(comm, ranks, id, rank);
}

int ncclCommDestroy(struct communicator *comm) {
    cuMemFree_v2(comm->buffer);
    cuMemRelease(comm->handle);
    comm->aborted = true; // it stays: gates look at it
    return 0;
}

int ncclCommAbort(struct communicator *comm) { return ncclCommDestroy(comm); }

int ncclCommFinalize(struct communicator *comm) { return 0; }

int ncclCommCount(const struct communicator *comm, int *count) {
    *count = comm->ranks;
    return 0;
}

int ncclCommUserRank(const struct communicator *comm, int *rank) {
    *rank = comm->rank;
    return 0;
}

int ncclCommGetAsyncError(struct communicator *comm, int *error) {
    *error = 0;
    return 0;
}

// --- collectives -------------------------------------------------------------------------------------

static bool all_have_begun(const void *of, uint64_t number) {
    const struct communicator *comm = of;
    for (int rank = 0; rank < comm->ranks; rank++)
        if (atomic_load(&comm->meeting->begun[rank]) < number && !comm->aborted)
            return false;
    return true;
}

static int collective(struct communicator *comm, void *stream) {
    uint64_t number = atomic_fetch_add(&comm->meeting->begun[comm->rank], 1) + 1;
    if (fake_stream_gate)
        fake_stream_gate(stream, (struct fake_gate){all_have_begun, comm, number});
    return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                  struct communicator *comm, void *stream) {
    return collective(comm, stream);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                  struct communicator *comm, void *stream) {
    return collective(comm, stream);
}

int ncclBcast(void *buffer, size_t count, int type, int root, struct communicator *comm,
              void *stream) {
    return collective(comm, stream);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
               struct communicator *comm, void *stream) {
    return collective(comm, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *comm,
                  void *stream) {
    return collective(comm, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
                      struct communicator *comm, void *stream) {
    return collective(comm, stream);
}

int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct communicator *comm,
                 void *stream) {
    return collective(comm, stream);
}

// --- the rest ----------------------------------------------------------------------------------------

#define ANSWER(name, result) \
    int name(void) { return result; }

ANSWER(ncclGroupStart, 0)
ANSWER(ncclGroupEnd, 0)
ANSWER(ncclGroupSimulateEnd, 0)
ANSWER(ncclSend, 0)
ANSWER(ncclRecv, 0)
ANSWER(ncclCommInitAll, NCCL_INVALID_USAGE)
ANSWER(ncclCommShrink, NCCL_INVALID_USAGE)
ANSWER(ncclCommRegister, NCCL_INVALID_USAGE)
ANSWER(ncclCommDeregister, NCCL_INVALID_USAGE)
ANSWER(ncclCommWindowRegister, NCCL_INVALID_USAGE)
ANSWER(ncclCommWindowDeregister, NCCL_INVALID_USAGE)
ANSWER(ncclDevCommCreate, NCCL_INVALID_USAGE)
ANSWER(ncclDevCommDestroy, NCCL_INVALID_USAGE)
ANSWER(ncclRedOpCreatePreMulSum, NCCL_INVALID_USAGE)
ANSWER(ncclRedOpDestroy, NCCL_INVALID_USAGE)

int ncclGetVersion(int *version) {
    *version = 22809; // what torch 2.11 comes with
    return 0;
}

const char *ncclGetErrorString(int error) { return error ? "the fake cannot" : "no error"; }

const char *ncclGetLastError(struct communicator *comm) { return "none"; }

int ncclMemAlloc(void **address, size_t bytes) {
    return cuMemAlloc_v2((uintptr_t *)address, bytes) ? NCCL_SYSTEM_ERROR : 0;
}

int ncclMemFree(void *address) { return cuMemFree_v2((uintptr_t)address); }
