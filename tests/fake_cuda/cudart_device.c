// The CUDA runtime: versions, errors, devices and their properties, the way to the driver.
//
// The runtime's functions here and in the other cudart_*.c are plain symbols: preloaded, they win
// over those of libcudart.so, whose versioned names the callers ask for. cudaDeviceProp has the
// layout of CUDA 13; a program built for CUDA 12 would read nonsense from it.
#include "cudart.h"
#include "abi.h"

#include <stdio.h>
#include <string.h>

static _Thread_local int last_error;

int cudart_fail(int error) {
    if (error)
        last_error = error;
    return error;
}

int cudaGetLastError(void) {
    int error = last_error;
    last_error = FAKE_SUCCESS;
    return error;
}

int cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(int error) { return fake_error_name(error); }

const char *cudaGetErrorString(int error) { return fake_error_text(error); }

int cudaDriverGetVersion(int *version) {
    *version = 13000;
    return FAKE_SUCCESS;
}

int cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return FAKE_SUCCESS;
}

int cudaGetDeviceCount(int *count) {
    *count = fake_visible_count();
    return cudart_fail(*count ? FAKE_SUCCESS : FAKE_NO_DEVICE);
}

int cudaGetDevice(int *device) {
    *device = fake_current_device();
    return FAKE_SUCCESS;
}

int cudaSetDevice(int device) { return cudart_fail(fake_set_current_device(device)); }

int cudaGetDeviceProperties(struct device_properties *p, int device) {
    if (fake_physical(device) < 0)
        return cudart_fail(FAKE_INVALID_DEVICE);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", fake_device_name());
    fake_device_uuid(fake_physical(device), p->uuid);
    p->total_global_memory = fake_device_bytes();
    p->shared_memory_per_block = (size_t)fake_device_attribute(8, device);
    p->registers_per_block = fake_device_attribute(12, device);
    p->warp_size = fake_device_attribute(10, device);
    p->memory_pitch = (size_t)fake_device_attribute(11, device);
    p->max_threads_per_block = fake_device_attribute(1, device);
    for (int axis = 0; axis < 3; axis++) {
        p->max_threads_dim[axis] = fake_device_attribute(2 + axis, device);
        p->max_grid_size[axis] = fake_device_attribute(5 + axis, device);
    }
    p->total_constant_memory = (size_t)fake_device_attribute(9, device);
    p->major = fake_device_attribute(75, device);
    p->minor = fake_device_attribute(76, device);
    p->texture_alignment = (size_t)fake_device_attribute(14, device);
    p->multiprocessors = fake_device_attribute(16, device);
    p->can_map_host_memory = 1;
    p->concurrent_kernels = 1;
    p->pci_bus = fake_device_attribute(33, device);
    p->async_engines = fake_device_attribute(40, device);
    p->unified_addressing = 1;
    p->memory_bus_width = fake_device_attribute(37, device);
    p->l2_cache_bytes = fake_device_attribute(38, device);
    p->max_threads_per_multiprocessor = fake_device_attribute(39, device);
    p->stream_priorities = 1;
    p->shared_memory_per_multiprocessor = (size_t)fake_device_attribute(81, device);
    p->registers_per_multiprocessor = fake_device_attribute(82, device);
    p->cooperative_launch = 1;
    p->shared_memory_per_block_optin = (size_t)fake_device_attribute(97, device);
    p->max_blocks_per_multiprocessor = fake_device_attribute(106, device);
    p->host_register = 1;
    p->memory_pools = 1;
    return FAKE_SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (fake_physical(device) < 0)
        return cudart_fail(FAKE_INVALID_DEVICE);
    *value = fake_device_attribute(attribute, device);
    return FAKE_SUCCESS;
}

int cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (fake_physical(device) < 0)
        return cudart_fail(FAKE_INVALID_DEVICE);
    fake_device_pci_bus_id(fake_physical(device), text, length);
    return FAKE_SUCCESS;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer && fake_physical(device) >= 0 && fake_physical(peer) >= 0;
    return FAKE_SUCCESS;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return FAKE_SUCCESS;
}

ACCEPT(cudaDeviceEnablePeerAccess)
ACCEPT(cudaProfilerStart)
ACCEPT(cudaProfilerStop)

// --- the way to the driver -----------------------------------------------------------------------

// PyTorch takes every driver function it uses from here.
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                     unsigned long long flags, int *status) {
    *function = fake_driver_symbol(name);
    if (status)
        *status = *function ? 0 : 1; // found, not found
    return FAKE_SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}
