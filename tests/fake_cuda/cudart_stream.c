// The CUDA runtime's streams, events and graphs, and its kernels, which do nothing.
//
// All work is done the moment it is asked for, so a stream is only a name, every wait is over at
// once, and an event is the time at which it was recorded. The one exception is a gate, which a
// collective puts into its stream (nccl.c), or a copy where copies take time (cudart_memory.c): what
// comes behind it in that stream waits until it opens, events and the streams that wait for them
// included. A stream knows its newest gate only. Capturing a stream gives a graph with
// one node, whatever was launched meanwhile; launching the graph does nothing. That is enough for
// torch.cuda.graph with its private memory pools.
//
// Capture spreads to no other stream, and nothing checks what is illegal during capture.
#include "cudart.h"
#include "abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// --- streams -----------------------------------------------------------------------------------------

struct stream {
    int priority;
    unsigned long long capture_id; // zero when not capturing
    struct fake_gate gate;
    struct stream *next;
};

// All streams there ever were; one that is destroyed stays, for threads that wait for it.
static struct stream *_Atomic all_streams;
// What the handles 0, 1 and 2 stand for.
static struct stream default_streams[3];
static pthread_mutex_t gates = PTHREAD_MUTEX_INITIALIZER;

static atomic_ullong next_capture_id = 1;
static char any_graph;

int cudaStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return cudart_fail(FAKE_OUT_OF_MEMORY);
    (*stream)->priority = priority;
    (*stream)->next = atomic_load(&all_streams);
    while (!atomic_compare_exchange_weak(&all_streams, &(*stream)->next, *stream))
        ;
    return FAKE_SUCCESS;
}

int cudaStreamCreate(struct stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamCreateWithFlags(struct stream **stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

ACCEPT(cudaStreamDestroy)

// The default streams are the handles 0, 1 and 2.
static bool is_default(const struct stream *stream) { return (uintptr_t)stream <= 2; }

int cudaStreamGetPriority(struct stream *stream, int *priority) {
    *priority = is_default(stream) ? 0 : stream->priority;
    return FAKE_SUCCESS;
}

// --- gates -------------------------------------------------------------------------------------------

static bool is_open(struct fake_gate gate) { return !gate.opens || gate.opens(gate.of, gate.number); }

static struct fake_gate *gate_of(struct stream *stream) {
    return is_default(stream) ? &default_streams[(uintptr_t)stream].gate : &stream->gate;
}

static struct fake_gate gate_now(struct stream *stream) {
    pthread_mutex_lock(&gates);
    struct fake_gate gate = *gate_of(stream);
    pthread_mutex_unlock(&gates);
    return gate;
}

void fake_stream_gate(void *stream, struct fake_gate gate) {
    pthread_mutex_lock(&gates);
    *gate_of(stream) = gate;
    pthread_mutex_unlock(&gates);
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static bool has_come(const void *of, uint64_t number) { return now_us() >= number; }

void fake_stream_busy(void *stream, uint64_t us) {
    pthread_mutex_lock(&gates);
    struct fake_gate *gate = gate_of(stream);
    uint64_t from = gate->opens == has_come && !is_open(*gate) ? gate->number : now_us();
    *gate = (struct fake_gate){has_come, NULL, from + us};
    pthread_mutex_unlock(&gates);
}

static int query(struct fake_gate gate) { return is_open(gate) ? FAKE_SUCCESS : FAKE_NOT_READY; }

static int pass(struct fake_gate gate) {
    while (!is_open(gate))
        usleep(1000);
    return FAKE_SUCCESS;
}

int cudaStreamQuery(struct stream *stream) { return query(gate_now(stream)); }

int cudaStreamSynchronize(struct stream *stream) { return pass(gate_now(stream)); }

int cudaDeviceSynchronize(void) {
    for (struct stream *stream = atomic_load(&all_streams); stream; stream = stream->next)
        pass(gate_now(stream));
    return pass(gate_now(NULL));
}

int cudaLaunchHostFunc(struct stream *stream, void (*function)(void *), void *data) {
    function(data);
    return FAKE_SUCCESS;
}

int cudaStreamAddCallback(struct stream *stream, void (*callback)(struct stream *, int, void *),
                          void *data, unsigned flags) {
    callback(stream, FAKE_SUCCESS, data);
    return FAKE_SUCCESS;
}

// --- events ------------------------------------------------------------------------------------------

struct event {
    struct timespec recorded;
    struct fake_gate gate;
};

int cudaEventCreateWithFlags(struct event **event, unsigned flags) {
    *event = calloc(1, sizeof **event);
    return *event ? FAKE_SUCCESS : cudart_fail(FAKE_OUT_OF_MEMORY);
}

int cudaEventCreate(struct event **event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(struct event *event) {
    free(event);
    return FAKE_SUCCESS;
}

int cudaEventRecord(struct event *event, void *stream) {
    clock_gettime(CLOCK_MONOTONIC, &event->recorded);
    event->gate = gate_now(stream);
    return FAKE_SUCCESS;
}

int cudaEventRecordWithFlags(struct event *event, void *stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}

int cudaEventElapsedTime(float *milliseconds, struct event *start, struct event *end) {
    double seconds = (double)(end->recorded.tv_sec - start->recorded.tv_sec);
    double nanoseconds = (double)(end->recorded.tv_nsec - start->recorded.tv_nsec);
    *milliseconds = (float)(1e3 * seconds + 1e-6 * nanoseconds);
    return FAKE_SUCCESS;
}

int cudaEventQuery(struct event *event) { return query(event->gate); }

int cudaEventSynchronize(struct event *event) { return pass(event->gate); }

int cudaStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    if (!is_open(event->gate))
        fake_stream_gate(stream, event->gate);
    return FAKE_SUCCESS;
}

// --- capture and graphs ------------------------------------------------------------------------------

int cudaStreamBeginCapture(struct stream *stream, int mode) {
    if (is_default(stream))
        return cudart_fail(FAKE_INVALID_VALUE);
    stream->capture_id = atomic_fetch_add(&next_capture_id, 1);
    return FAKE_SUCCESS;
}

int cudaStreamEndCapture(struct stream *stream, void **graph) {
    if (is_default(stream) || !stream->capture_id)
        return cudart_fail(FAKE_INVALID_VALUE);
    stream->capture_id = 0;
    *graph = &any_graph;
    return FAKE_SUCCESS;
}

static bool is_capturing(const struct stream *stream) { return !is_default(stream) && stream->capture_id; }

int cudaStreamIsCapturing(struct stream *stream, int *status) {
    *status = is_capturing(stream);
    return FAKE_SUCCESS;
}

int cudaStreamGetCaptureInfo(struct stream *stream, int *status, unsigned long long *id, void **graph,
                             const void **dependencies, const void **edges, size_t *count) {
    *status = is_capturing(stream);
    if (id)
        *id = is_capturing(stream) ? stream->capture_id : 0;
    if (graph)
        *graph = is_capturing(stream) ? &any_graph : NULL;
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return FAKE_SUCCESS;
}

int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (nodes)
        nodes[0] = &any_graph;
    *count = 1;
    return FAKE_SUCCESS;
}

int cudaGraphNodeGetDependencies(void *node, void **dependencies, void *edges, size_t *count) {
    *count = 0;
    return FAKE_SUCCESS;
}

int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    *executable = &any_graph;
    return FAKE_SUCCESS;
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

ACCEPT(cudaGraphLaunch)
ACCEPT(cudaGraphDestroy)
ACCEPT(cudaGraphExecDestroy)
ACCEPT(cudaGraphDebugDotPrint)
ACCEPT(cudaThreadExchangeStreamCaptureMode)

// --- kernels -----------------------------------------------------------------------------------------

// Every fat binary and every kernel is this one.
static void *any_binary;

void **__cudaRegisterFatBinary(void *binary) { return &any_binary; }

int __cudaGetKernel(void **kernel, const void *host_function) {
    *kernel = (void *)host_function;
    return FAKE_SUCCESS;
}

ACCEPT(__cudaRegisterFatBinaryEnd)
ACCEPT(__cudaRegisterFunction)
ACCEPT(__cudaRegisterVar)
ACCEPT(__cudaUnregisterFatBinary)
ACCEPT(__cudaInitModule)
ACCEPT(__cudaPushCallConfiguration)
ACCEPT(__cudaPopCallConfiguration)
ACCEPT(__cudaLaunchKernel)
ACCEPT(cudaLaunchKernel)
ACCEPT(cudaLaunchKernelExC)
ACCEPT(cudaLaunchCooperativeKernel)
ACCEPT(cudaFuncSetAttribute)

int cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = (void *)symbol;
    return FAKE_SUCCESS;
}

int cudaFuncGetAttributes(struct function_attributes *attributes, const void *function) {
    memset(attributes, 0, sizeof *attributes);
    attributes->max_threads_per_block = 1024;
    attributes->registers = 32;
    attributes->ptx_version = 80;
    attributes->binary_version = 80;
    attributes->max_dynamic_shared_bytes = 48 << 10;
    return FAKE_SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size,
                                                  size_t shared) {
    *blocks = 2;
    return FAKE_SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                           size_t shared, unsigned flags) {
    *blocks = 2;
    return FAKE_SUCCESS;
}
