// What the parts of the fake CUDA share: error codes, the device table, the memory table.
//
// libcuda.so.1 holds the state (device.c, memory.c, usage.c) and the driver API on top of it
// (driver.c, vmm.c). libfakecudart.so (cudart_*.c, cublas.c), libfakecupti.so (cupti.c) and
// libnvidia-ml.so.1 (nvml.c) link against it and keep no state of the devices, so whichever library
// a program asks, it gets the same answer.
//
// Nothing here includes an NVIDIA header: the few structs whose layout matters are in abi.h.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX_DEVICES 16

// CUresult and cudaError_t agree on the numbers of all of these.
enum fake_error {
    FAKE_SUCCESS = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_NOT_SUPPORTED = 801,
};

const char *fake_error_name(int error);
const char *fake_error_text(int error);

// --- device.c: which devices there are, and what they say of themselves ---------------------

// Devices of the machine, and those that CUDA_VISIBLE_DEVICES leaves to this process.
int fake_physical_count(void);
int fake_visible_count(void);
// The index on the machine of a visible device, or -1.
int fake_physical(int device);
uint64_t fake_device_bytes(void);
unsigned fake_malloc_latency_us(void);
// How many bytes a copy moves in a second, or 0: at once.
uint64_t fake_copy_bytes_per_second(void);

const char *fake_device_name(void);
void fake_device_uuid(int physical, unsigned char uuid[16]);
void fake_device_pci_bus_id(int physical, char *text, int capacity);
int fake_device_attribute(int attribute, int device);

// The device of the calling thread, as cudaSetDevice and cuCtxSetCurrent set it.
int fake_current_device(void);
int fake_set_current_device(int device);
void fake_activate(int device);
bool fake_is_active(int device);

// --- memory.c: what is allocated where --------------------------------------------------------

enum fake_kind {
    FAKE_DEVICE_MEMORY,     // cudaMalloc, cuMemAlloc
    FAKE_POOL_MEMORY,       // cudaMallocAsync
    FAKE_HOST_MEMORY,       // cudaHostAlloc
    FAKE_REGISTERED_MEMORY, // cudaHostRegister: the memory is not ours
    FAKE_MAPPED_MEMORY,     // cuMemMap: the memory belongs to a reservation
};

struct fake_range {
    uintptr_t start;
    size_t bytes;
    enum fake_kind kind;
    int device;
    void *owner; // the mempool or the cuMemCreate handle behind it, or NULL
};

int fake_allocate(void **address, size_t bytes, enum fake_kind kind, int device, void *owner);
// Gives back what fake_allocate gave; fails when `address` is not the start of a range of `kind`.
int fake_release(void *address, enum fake_kind kind, struct fake_range *was);

int fake_range_add(struct fake_range range);
bool fake_range_take(uintptr_t start, enum fake_kind kind, struct fake_range *was);
bool fake_range_find(const void *inside, struct fake_range *found);

// Counts bytes against the limit of a device, without memory behind them.
int fake_charge(int device, size_t bytes);
void fake_discharge(int device, size_t bytes);
void fake_memory_info(int device, size_t *free_bytes, size_t *total_bytes);

// Copies, but writes only where the bytes differ, so that zeros stay untouched pages.
void fake_copy(void *destination, const void *source, size_t bytes);

// --- usage.c: what each process uses, for other processes to see --------------------------------

void fake_usage_publish(int physical, uint64_t bytes);
uint64_t fake_usage_of_others(int physical);
// Fills in the processes that use a device, this one included; returns how many there are.
int fake_usage_processes(int physical, int *pids, uint64_t *bytes, int capacity);

// --- cudart_stream.c: what a stream waits for ----------------------------------------------------

// Opens for good when `opens(of, number)` is true; one without a function is open.
struct fake_gate {
    bool (*opens)(const void *of, uint64_t number);
    const void *of; // never freed: a thread may wait for it for ever
    uint64_t number;
};

// What comes behind this in a stream (cudaStream_t) waits for the gate.
void fake_stream_gate(void *stream, struct fake_gate gate);

// The stream is at work for this many microseconds more.
void fake_stream_busy(void *stream, uint64_t us);

// --- driver.c ------------------------------------------------------------------------------------

// A function of this driver by its plain name ("cuMemCreate"), or NULL.
void *fake_driver_symbol(const char *name);

// What is reported of the driver calls that take memory or give it back, as each begins and ends;
// CUPTI's numbers name the functions. Nothing is reported before it is set.
typedef void fake_watcher(unsigned function, bool ends, const void *parameters, int *result);
void fake_watch(fake_watcher *watcher);
void fake_tell(unsigned function, bool ends, const void *parameters, int *result);

// The result of `call`, with a report to the watcher before and after.
#define FAKE_REPORTED(function, parameters, call)               \
    ({                                                      \
        fake_tell(function, false, &(parameters), NULL);    \
        int result_ = (call);                               \
        fake_tell(function, true, &(parameters), &result_); \
        result_;                                            \
    })

enum fake_reported { // CUPTI_DRIVER_TRACE_CBID_…
    FAKE_MEM_ALLOC = 243,
    FAKE_MEM_FREE = 245,
    FAKE_MEM_CREATE = 549,
    FAKE_MEM_RELEASE = 550,
    FAKE_MEM_RETAIN = 565,
};
