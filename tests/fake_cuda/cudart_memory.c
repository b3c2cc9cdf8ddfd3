// The CUDA runtime's memory: device, pinned host, memory pools, copies, pointer attributes.
//
// Allocation and the byte limit are memory.c's; copies really copy, at once, whatever the stream;
// memsets do nothing. A pool keeps nothing back: what cudaFreeAsync returns is free at once, so a
// pool's reserved bytes are its used bytes, and there is nothing to trim.
//
// Managed memory is device memory that the host may touch, which here is all of it. Sharing memory
// between processes (cudaIpc…) is not supported.
#include "cudart.h"
#include "abi.h"

#include <pthread.h>
#include <stdlib.h>

int cuMemAlloc_v2(uintptr_t *address, size_t bytes);
int cuMemFree_v2(uintptr_t address);

int cudaMalloc(void **address, size_t bytes) {
    *address = NULL;
    return bytes ? cudart_fail(cuMemAlloc_v2((uintptr_t *)address, bytes)) : FAKE_SUCCESS;
}

int cudaMallocManaged(void **address, size_t bytes, unsigned flags) {
    return cudart_fail(
        fake_allocate(address, bytes, FAKE_DEVICE_MEMORY, fake_current_device(), NULL));
}

int cudaFreeAsync(void *address, void *stream);

int cudaFree(void *address) {
    struct fake_range range;
    if (!address)
        return FAKE_SUCCESS;
    if (fake_range_find(address, &range) && range.kind == FAKE_POOL_MEMORY)
        return cudaFreeAsync(address, NULL);
    return cudart_fail(cuMemFree_v2((uintptr_t)address));
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (fake_visible_count() == 0)
        return cudart_fail(FAKE_NO_DEVICE);
    fake_memory_info(fake_current_device(), free_bytes, total_bytes);
    return FAKE_SUCCESS;
}

// --- pinned host memory --------------------------------------------------------------------------

int cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    return cudart_fail(fake_allocate(address, bytes, FAKE_HOST_MEMORY, fake_current_device(), NULL));
}

int cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

int cudaFreeHost(void *address) {
    return address ? cudart_fail(fake_release(address, FAKE_HOST_MEMORY, NULL)) : FAKE_SUCCESS;
}

int cudaHostRegister(void *address, size_t bytes, unsigned flags) {
    return cudart_fail(fake_range_add((struct fake_range){
        (uintptr_t)address, bytes, FAKE_REGISTERED_MEMORY, fake_current_device(), NULL}));
}

int cudaHostUnregister(void *address) {
    struct fake_range was;
    bool found = fake_range_take((uintptr_t)address, FAKE_REGISTERED_MEMORY, &was);
    return cudart_fail(found ? FAKE_SUCCESS : FAKE_INVALID_VALUE);
}

int cudaHostGetDevicePointer(void **device_address, void *address, unsigned flags) {
    *device_address = address;
    return FAKE_SUCCESS;
}

int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address) {
    struct fake_range range;
    *attributes = (struct pointer_attributes){.type = POINTER_UNREGISTERED, .device = -2};
    if (!fake_range_find(address, &range)) {
        attributes->host_pointer = (void *)address;
        return FAKE_SUCCESS;
    }
    bool is_host = range.kind == FAKE_HOST_MEMORY || range.kind == FAKE_REGISTERED_MEMORY;
    attributes->type = is_host ? POINTER_HOST : POINTER_DEVICE;
    attributes->device = range.device;
    attributes->device_pointer = (void *)address;
    attributes->host_pointer = is_host ? (void *)address : NULL;
    return FAKE_SUCCESS;
}

// --- memory pools ----------------------------------------------------------------------------------

struct pool {
    int device;
    uint64_t release_threshold;
    uint64_t used, used_high;
};

enum pool_attribute { // cudaMemPoolAttr
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED_CURRENT = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED_CURRENT = 7,
    POOL_USED_HIGH = 8,
};

static struct pool default_pools[FAKE_MAX_DEVICES];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

int cudaDeviceGetDefaultMemPool(struct pool **pool, int device) {
    if (fake_physical(device) < 0)
        return cudart_fail(FAKE_INVALID_DEVICE);
    default_pools[device].device = device;
    *pool = &default_pools[device];
    return FAKE_SUCCESS;
}

int cudaDeviceGetMemPool(struct pool **pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}

int cudaMemPoolCreate(struct pool **pool, const struct pool_properties *properties) {
    *pool = calloc(1, sizeof **pool);
    if (!*pool)
        return cudart_fail(FAKE_OUT_OF_MEMORY);
    (*pool)->device = properties->location.id;
    return FAKE_SUCCESS;
}

int cudaMemPoolDestroy(struct pool *pool) {
    free(pool);
    return FAKE_SUCCESS;
}

int cudaMallocFromPoolAsync(void **address, size_t bytes, struct pool *pool, void *stream) {
    int error = fake_allocate(address, bytes, FAKE_POOL_MEMORY, pool->device, pool);
    struct fake_range range;
    if (error || !*address || !fake_range_find(*address, &range))
        return cudart_fail(error);
    pthread_mutex_lock(&pool_lock);
    pool->used += range.bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    pthread_mutex_unlock(&pool_lock);
    return FAKE_SUCCESS;
}

int cudaMallocAsync(void **address, size_t bytes, void *stream) {
    struct pool *pool;
    int error = cudaDeviceGetDefaultMemPool(&pool, fake_current_device());
    return error ? error : cudaMallocFromPoolAsync(address, bytes, pool, stream);
}

int cudaFreeAsync(void *address, void *stream) {
    struct fake_range was;
    if (!address)
        return FAKE_SUCCESS;
    int error = fake_release(address, FAKE_POOL_MEMORY, &was);
    if (error)
        return cudart_fail(error);
    struct pool *pool = was.owner;
    pthread_mutex_lock(&pool_lock);
    pool->used -= was.bytes;
    pthread_mutex_unlock(&pool_lock);
    return FAKE_SUCCESS;
}

// The high-water marks can only be set to zero: that restarts them from the present level.
int cudaMemPoolSetAttribute(struct pool *pool, int attribute, void *value) {
    pthread_mutex_lock(&pool_lock);
    if (attribute == POOL_RELEASE_THRESHOLD)
        pool->release_threshold = *(uint64_t *)value;
    if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH)
        pool->used_high = pool->used;
    pthread_mutex_unlock(&pool_lock);
    return FAKE_SUCCESS;
}

int cudaMemPoolGetAttribute(struct pool *pool, int attribute, void *value) {
    pthread_mutex_lock(&pool_lock);
    switch (attribute) {
    case POOL_RELEASE_THRESHOLD: *(uint64_t *)value = pool->release_threshold; break;
    case POOL_RESERVED_CURRENT: case POOL_USED_CURRENT: *(uint64_t *)value = pool->used; break;
    case POOL_RESERVED_HIGH: case POOL_USED_HIGH: *(uint64_t *)value = pool->used_high; break;
    default: *(int *)value = 1; // the reuse policies are flags
    }
    pthread_mutex_unlock(&pool_lock);
    return FAKE_SUCCESS;
}

ACCEPT(cudaMemPoolSetAccess)
ACCEPT(cudaMemPoolTrimTo)

// --- copies ------------------------------------------------------------------------------------------

int cudaMemcpy(void *destination, const void *source, size_t bytes, int kind) {
    fake_copy(destination, source, bytes);
    return FAKE_SUCCESS;
}

// The default streams, the handles 0 to 2, are never busy: everything waits for them.
int cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind, void *stream) {
    uint64_t per_second = fake_copy_bytes_per_second();
    if (per_second && (uintptr_t)stream > 2)
        fake_stream_busy(stream, bytes * 1000000 / per_second);
    return cudaMemcpy(destination, source, bytes, kind);
}

int cudaMemcpyPeerAsync(void *destination, int to_device, const void *source, int from_device,
                        size_t bytes, void *stream) {
    return cudaMemcpy(destination, source, bytes, 3);
}

int cudaMemcpy2DAsync(void *destination, size_t to_pitch, const void *source, size_t from_pitch,
                      size_t width, size_t height, int kind, void *stream) {
    for (size_t row = 0; row < height; row++)
        fake_copy((char *)destination + row * to_pitch, (const char *)source + row * from_pitch, width);
    return FAKE_SUCCESS;
}

ACCEPT(cudaMemset)
ACCEPT(cudaMemsetAsync)
ACCEPT(cudaMemset2DAsync)
ACCEPT(cudaMemcpyToSymbol)

// --- memory of other processes -------------------------------------------------------------------------

static int not_supported(void) { return cudart_fail(FAKE_NOT_SUPPORTED); }

#define REFUSE(name) __typeof__(not_supported) name __attribute__((alias("not_supported")))
REFUSE(cudaIpcGetMemHandle);
REFUSE(cudaIpcOpenMemHandle);
REFUSE(cudaIpcCloseMemHandle);
REFUSE(cudaIpcGetEventHandle);
REFUSE(cudaIpcOpenEventHandle);
