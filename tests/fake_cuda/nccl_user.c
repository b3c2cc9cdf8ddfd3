// A library that uses NCCL the way libtorch_cuda.so does: its calls are bound by the dynamic
// linker, so what stands in front of NCCL is in front of these. For ctypes, which itself binds
// nothing that way.
#include <stddef.h>

struct unique_id { // ncclUniqueId: passed by value, which ctypes cannot be trusted with
    char internal[128];
};

int ncclCommInitRank(void **comm, int ranks, struct unique_id id, int rank);
int ncclCommInitRankConfig(void **comm, int ranks, struct unique_id id, int rank, void *config);
int ncclCommSplit(void *of, int color, int key, void **comm, void *config);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclMemAlloc(void **address, size_t bytes);
int ncclMemFree(void *address);

static struct unique_id id_of(char last) {
    struct unique_id id = {{0}};
    id.internal[127] = last; // the fake refuses any other than 'z': it must arrive whole
    return id;
}

int use_init(void **comm, char last) { return ncclCommInitRank(comm, 1, id_of(last), 0); }
int use_init_config(void **comm) { return ncclCommInitRankConfig(comm, 1, id_of('z'), 0, NULL); }
int use_split(void *of, void **comm) { return ncclCommSplit(of, 0, 0, comm, NULL); }
int use_destroy(void *comm) { return ncclCommDestroy(comm); }
int use_abort(void *comm) { return ncclCommAbort(comm); }
int use_alloc(void **address, size_t bytes) { return ncclMemAlloc(address, bytes); }
int use_free(void *address) { return ncclMemFree(address); }
