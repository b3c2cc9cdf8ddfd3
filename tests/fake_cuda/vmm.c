// Virtual memory management: what PyTorch's expandable segments are made of.
//
// A reservation is address space that cannot be touched; cuMemCreate counts bytes against the
// device's limit and has no memory behind it; cuMemMap joins the two and cuMemSetAccess opens the
// pages. The bytes count until both the handle is released and its last mapping is gone, as on
// a device.
//
// A handle mapped at two addresses gives two separate memories, not one. Handles cannot be
// exported or imported: those calls say "not supported".
#define _GNU_SOURCE
#include "fake.h"
#include "abi.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRANULARITY (2u << 20)
#define LOCATION_DEVICE 1

struct physical_memory {
    size_t bytes;
    int device;
    struct allocation_properties properties;
    atomic_int references; // the handle itself, and one for each mapping
};

static void drop_reference(struct physical_memory *memory) {
    if (atomic_fetch_sub(&memory->references, 1) > 1)
        return;
    fake_discharge(memory->device, memory->bytes);
    free(memory);
}

static bool is_granular(size_t bytes) { return bytes > 0 && bytes % GRANULARITY == 0; }

int cuMemGetAllocationGranularity(size_t *granularity, const struct allocation_properties *properties,
                                  int option) {
    *granularity = GRANULARITY;
    return FAKE_SUCCESS;
}

static int create(uint64_t *handle, size_t bytes, const struct allocation_properties *properties) {
    if (!is_granular(bytes) || properties->location.type != LOCATION_DEVICE)
        return FAKE_INVALID_VALUE;
    int device = properties->location.id;
    int error = fake_charge(device, bytes);
    if (error)
        return error;
    struct physical_memory *memory = malloc(sizeof *memory);
    if (!memory) {
        fake_discharge(device, bytes);
        return FAKE_OUT_OF_MEMORY;
    }
    *memory = (struct physical_memory){bytes, device, *properties, 1};
    *handle = (uint64_t)(uintptr_t)memory;
    return FAKE_SUCCESS;
}

int cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation_properties *properties,
                uint64_t flags) {
    struct mem_create_parameters parameters = {handle, bytes, properties, flags};
    return FAKE_REPORTED(FAKE_MEM_CREATE, parameters, create(handle, bytes, properties));
}

static int release(uint64_t handle) {
    drop_reference((struct physical_memory *)(uintptr_t)handle);
    return FAKE_SUCCESS;
}

int cuMemRelease(uint64_t handle) { return FAKE_REPORTED(FAKE_MEM_RELEASE, handle, release(handle)); }

int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t hint,
                        uint64_t flags) {
    if (!is_granular(bytes))
        return FAKE_INVALID_VALUE;
    size_t unit = alignment > GRANULARITY ? alignment : GRANULARITY;
    char *mapped = mmap((void *)hint, bytes + unit, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return FAKE_OUT_OF_MEMORY;
    char *start = (char *)(((uintptr_t)mapped + unit - 1) / unit * unit);
    if (start > mapped)
        munmap(mapped, (size_t)(start - mapped));
    if (start < mapped + unit)
        munmap(start + bytes, (size_t)(mapped + unit - start));
    madvise(start, bytes, MADV_NOHUGEPAGE);
    *address = (uintptr_t)start;
    return FAKE_SUCCESS;
}

int cuMemAddressFree(uintptr_t address, size_t bytes) {
    return munmap((void *)address, bytes) == 0 ? FAKE_SUCCESS : FAKE_INVALID_VALUE;
}

int cuMemMap(uintptr_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
    struct physical_memory *memory = (struct physical_memory *)(uintptr_t)handle;
    if (!is_granular(bytes) || offset > memory->bytes || bytes > memory->bytes - offset)
        return FAKE_INVALID_VALUE;
    struct fake_range taken;
    if (fake_range_find((void *)address, &taken))
        return FAKE_INVALID_VALUE;
    int error = fake_range_add(
        (struct fake_range){address, bytes, FAKE_MAPPED_MEMORY, memory->device, memory});
    if (!error)
        atomic_fetch_add(&memory->references, 1);
    return error;
}

// Access is given to whole ranges; which device gets it does not matter here.
int cuMemSetAccess(uintptr_t address, size_t bytes, const void *descriptions, size_t count) {
    return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) == 0 ? FAKE_SUCCESS
                                                                         : FAKE_INVALID_VALUE;
}

// Takes away every mapping in [address, address + bytes) and leaves the address space reserved.
int cuMemUnmap(uintptr_t address, size_t bytes) {
    uintptr_t at = address;
    while (at < address + bytes) {
        struct fake_range range;
        if (!fake_range_take(at, FAKE_MAPPED_MEMORY, &range))
            return FAKE_INVALID_VALUE;
        mmap((void *)at, range.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop_reference(range.owner);
        at += range.bytes;
    }
    return FAKE_SUCCESS;
}

static int retain(uint64_t *handle, void *address) {
    struct fake_range range;
    if (!fake_range_find(address, &range) || range.kind != FAKE_MAPPED_MEMORY)
        return FAKE_INVALID_VALUE;
    struct physical_memory *memory = range.owner;
    atomic_fetch_add(&memory->references, 1);
    *handle = (uint64_t)(uintptr_t)memory;
    return FAKE_SUCCESS;
}

int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    struct mem_retain_parameters parameters = {handle, address};
    return FAKE_REPORTED(FAKE_MEM_RETAIN, parameters, retain(handle, address));
}

int cuMemGetAllocationPropertiesFromHandle(struct allocation_properties *properties, uint64_t handle) {
    *properties = ((struct physical_memory *)(uintptr_t)handle)->properties;
    return FAKE_SUCCESS;
}

int cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, uint64_t flags) {
    return FAKE_NOT_SUPPORTED;
}

int cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type) {
    return FAKE_NOT_SUPPORTED;
}
