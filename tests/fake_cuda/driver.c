// The driver API without virtual memory (that is vmm.c): devices, contexts, plain memory.
//
// A context is a device: the handle of device d is the address of contexts[d], and making it
// current makes d the current device. Programs reach these functions by linking, by dlsym, or by
// asking cuGetProcAddress or cudaGetDriverEntryPoint, which all end in fake_driver_symbol.
// Where CUDA has a `_v2` (or `_v4`) of a function, both names are here with the newer signature,
// as CUDA 13 programs use it.
//
// Modules load and kernels launch without doing anything; their functions are found whatever
// their name. Arrays, textures, green contexts, IPC and multicast are absent: a caller that asks for
// them by name gets the answer that there is no such symbol.
#define _GNU_SOURCE
#include "abi.h"
#include "fake.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define ALIAS(name) __attribute__((alias(name)))
// A function that takes anything and succeeds: extra arguments do no harm in the C ABI.
#define ACCEPT(name) \
    int name(void) { return FAKE_SUCCESS; }

static char contexts[FAKE_MAX_DEVICES];
static _Thread_local bool has_context;

static int context_device(const void *context) {
    const char *at = context;
    return at >= contexts && at < contexts + FAKE_MAX_DEVICES ? (int)(at - contexts) : -1;
}

// --- the driver itself ---------------------------------------------------------------------------

int cuInit(unsigned flags) { return fake_visible_count() ? FAKE_SUCCESS : FAKE_NO_DEVICE; }

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return FAKE_SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    *text = fake_error_text(error);
    return FAKE_SUCCESS;
}

int cuGetErrorName(int error, const char **name) {
    *name = fake_error_name(error);
    return FAKE_SUCCESS;
}

void *fake_driver_symbol(const char *name) {
    static void *self;
    if (!self) {
        Dl_info here;
        if (!dladdr((void *)fake_driver_symbol, &here))
            return NULL;
        self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    if (!self || strncmp(name, "cu", 2) != 0)
        return NULL;
    char versioned[128];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *found = dlsym(self, versioned);
    return found ? found : dlsym(self, name);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    *function = fake_driver_symbol(name);
    if (status)
        *status = *function ? 0 : 1; // found, not found
    return *function ? FAKE_SUCCESS : FAKE_NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

static _Atomic(fake_watcher *) watching;

void fake_watch(fake_watcher *watcher) { watching = watcher; }

void fake_tell(unsigned function, bool ends, const void *parameters, int *result) {
    fake_watcher *watcher = watching;
    if (watcher)
        watcher(function, ends, parameters, result);
}

// --- devices ---------------------------------------------------------------------------------------

int cuDeviceGetCount(int *count) {
    *count = fake_visible_count();
    return FAKE_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    if (fake_physical(ordinal) < 0)
        return FAKE_INVALID_DEVICE;
    *device = ordinal;
    return FAKE_SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", fake_device_name());
    return FAKE_SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    fake_device_uuid(fake_physical(device), uuid);
    return FAKE_SUCCESS;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) ALIAS("cuDeviceGetUuid_v2");

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    *bytes = fake_device_bytes();
    return FAKE_SUCCESS;
}
int cuDeviceTotalMem(size_t *bytes, int device) ALIAS("cuDeviceTotalMem_v2");

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    *value = fake_device_attribute(attribute, device);
    return FAKE_SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    fake_device_pci_bus_id(fake_physical(device), text, length);
    return FAKE_SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer && fake_physical(device) >= 0 && fake_physical(peer) >= 0;
    return FAKE_SUCCESS;
}

// --- contexts --------------------------------------------------------------------------------------

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    *flags = 0;
    *is_active = fake_is_active(device);
    return FAKE_SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    fake_activate(device);
    *context = &contexts[device];
    return FAKE_SUCCESS;
}

int cuCtxGetCurrent(void **context) {
    int device = fake_current_device();
    bool is_current = fake_visible_count() && (has_context || fake_is_active(device));
    *context = is_current ? &contexts[device] : NULL;
    return FAKE_SUCCESS;
}

int cuCtxSetCurrent(void *context) {
    has_context = context != NULL;
    return context ? fake_set_current_device(context_device(context)) : FAKE_SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) ALIAS("cuCtxSetCurrent");
int cuCtxPushCurrent(void *context) ALIAS("cuCtxSetCurrent");

int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : FAKE_SUCCESS; }
int cuCtxPopCurrent(void **context) ALIAS("cuCtxPopCurrent_v2");

int cuCtxGetDevice(int *device) {
    *device = fake_current_device();
    return FAKE_SUCCESS;
}

int cuCtxGetApiVersion(void *context, unsigned *version) {
    *version = 13000;
    return FAKE_SUCCESS;
}

int cuCtxGetLimit(size_t *value, int limit) {
    *value = 0;
    return FAKE_SUCCESS;
}

ACCEPT(cuCtxSetLimit)
ACCEPT(cuDevicePrimaryCtxRelease)
ACCEPT(cuDevicePrimaryCtxRelease_v2)
ACCEPT(cuDevicePrimaryCtxSetFlags)
ACCEPT(cuDevicePrimaryCtxSetFlags_v2)
ACCEPT(cuCtxSynchronize)
ACCEPT(cuCtxEnablePeerAccess)
ACCEPT(cuCtxDisablePeerAccess)

// --- memory ----------------------------------------------------------------------------------------

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (fake_visible_count() == 0)
        return FAKE_NO_DEVICE;
    fake_memory_info(fake_current_device(), free_bytes, total_bytes);
    return FAKE_SUCCESS;
}
int cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) ALIAS("cuMemGetInfo_v2");

static int allocate(uintptr_t *address, size_t bytes) {
    if (bytes == 0)
        return FAKE_INVALID_VALUE;
    return fake_allocate((void **)address, bytes, FAKE_DEVICE_MEMORY, fake_current_device(), NULL);
}

int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    struct mem_alloc_parameters parameters = {address, bytes};
    return FAKE_REPORTED(FAKE_MEM_ALLOC, parameters, allocate(address, bytes));
}
int cuMemAlloc(uintptr_t *address, size_t bytes) ALIAS("cuMemAlloc_v2");

int cuMemFree_v2(uintptr_t address) {
    if (!address)
        return FAKE_SUCCESS;
    return FAKE_REPORTED(FAKE_MEM_FREE, address,
                     fake_release((void *)address, FAKE_DEVICE_MEMORY, NULL));
}
int cuMemFree(uintptr_t address) ALIAS("cuMemFree_v2");

int cuMemGetAddressRange_v2(uintptr_t *base, size_t *bytes, uintptr_t address) {
    struct fake_range range;
    if (!fake_range_find((void *)address, &range))
        return FAKE_INVALID_VALUE;
    if (base)
        *base = range.start;
    if (bytes)
        *bytes = range.bytes;
    return FAKE_SUCCESS;
}
int cuMemGetAddressRange(uintptr_t *base, size_t *bytes, uintptr_t address)
    ALIAS("cuMemGetAddressRange_v2");

static int copy(uintptr_t destination, uintptr_t source, size_t bytes) {
    fake_copy((void *)destination, (const void *)source, bytes);
    return FAKE_SUCCESS;
}
int cuMemcpy(uintptr_t destination, uintptr_t source, size_t bytes) {
    return copy(destination, source, bytes);
}
int cuMemcpyHtoD_v2(uintptr_t destination, const void *source, size_t bytes) {
    return copy(destination, (uintptr_t)source, bytes);
}
int cuMemcpyDtoH_v2(void *destination, uintptr_t source, size_t bytes) {
    return copy((uintptr_t)destination, source, bytes);
}
int cuMemcpyDtoD_v2(uintptr_t destination, uintptr_t source, size_t bytes) {
    return copy(destination, source, bytes);
}

// CU_POINTER_ATTRIBUTE_…: 1 context, 2 memory type, 3 device pointer, 9 device, 11 start, 12 size.
int cuPointerGetAttribute(void *value, int attribute, uintptr_t address) {
    struct fake_range range;
    if (!fake_range_find((void *)address, &range))
        return FAKE_INVALID_VALUE;
    bool is_host = range.kind == FAKE_HOST_MEMORY || range.kind == FAKE_REGISTERED_MEMORY;
    switch (attribute) {
    case 1: *(void **)value = &contexts[range.device]; return FAKE_SUCCESS;
    case 2: *(unsigned *)value = is_host ? 1 : 2; return FAKE_SUCCESS;
    case 3: *(uintptr_t *)value = address; return FAKE_SUCCESS;
    case 9: *(int *)value = range.device; return FAKE_SUCCESS;
    case 11: *(uintptr_t *)value = range.start; return FAKE_SUCCESS;
    case 12: *(size_t *)value = range.bytes; return FAKE_SUCCESS;
    default: return FAKE_NOT_SUPPORTED;
    }
}

ACCEPT(cuMemsetD8_v2)
ACCEPT(cuMemsetD32_v2)
ACCEPT(cuMemsetD8Async)
ACCEPT(cuMemsetD32Async)
ACCEPT(cuStreamWriteValue32)
ACCEPT(cuStreamWriteValue32_v2)
ACCEPT(cuStreamSynchronize)

// --- kernels ---------------------------------------------------------------------------------------

static int give_handle(void **handle) {
    static char anything;
    *handle = &anything;
    return FAKE_SUCCESS;
}
int cuModuleLoad(void **module, const char *path) { return give_handle(module); }
int cuModuleLoadData(void **module, const void *image) { return give_handle(module); }
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    return give_handle(module);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return give_handle(function);
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = attribute == 0 ? 1024 : 0; // the first is "maximum threads per block"
    return FAKE_SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int size, size_t shared) {
    *blocks = 2;
    return FAKE_SUCCESS;
}

ACCEPT(cuModuleUnload)
ACCEPT(cuFuncSetAttribute)
ACCEPT(cuFuncSetCacheConfig)
ACCEPT(cuLaunchKernel)
ACCEPT(cuLaunchKernelEx)
ACCEPT(cuLaunchCooperativeKernel)
ACCEPT(cuTensorMapEncodeTiled)
