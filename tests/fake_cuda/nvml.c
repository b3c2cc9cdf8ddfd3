// NVML: the devices of the machine, how full they are, and which process holds what.
//
// A device handle is the address of its entry in handles[]. What processes use comes from the file
// FAKECUDA_STATE (usage.c); without that file NVML sees nothing but its own process. As on a real
// machine, CUDA_VISIBLE_DEVICES does not matter here. Memory that a driver does not give back after
// its process has ended is a number in the file FAKECUDA_LEFT, which is read each time.
//
// Not here: clocks, temperatures, utilisation, topology, MIG; asking for them finds no symbol.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum nvml_result {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
};

#define MAX_PROCESSES 256

static char handles[FAKE_MAX_DEVICES];

static int index_of(const void *handle) {
    const char *at = handle;
    return at >= handles && at < handles + fake_physical_count() ? (int)(at - handles) : -1;
}

// Bytes that each device holds without a process.
static uint64_t left_bytes(void) {
    const char *path = getenv("FAKECUDA_LEFT");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return 0;
    unsigned long long bytes = 0;
    if (fscanf(file, "%llu", &bytes) != 1)
        bytes = 0;
    fclose(file);
    return bytes;
}

static uint64_t used_bytes(int physical) {
    int pids[MAX_PROCESSES];
    uint64_t bytes[MAX_PROCESSES], sum = left_bytes();
    int count = fake_usage_processes(physical, pids, bytes, MAX_PROCESSES);
    for (int i = 0; i < count && i < MAX_PROCESSES; i++)
        sum += bytes[i];
    return sum;
}

int nvmlInit_v2(void) { return NVML_SUCCESS; }
int nvmlInit(void) { return NVML_SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return NVML_SUCCESS; }
int nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(int result) { return result ? "error" : "success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.00");
    return NVML_SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    snprintf(text, length, "13.580.00");
    return NVML_SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

// --- devices -----------------------------------------------------------------------------------------

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)fake_physical_count();
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)fake_physical_count())
        return NVML_INVALID_ARGUMENT;
    *handle = &handles[index];
    return NVML_SUCCESS;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    int device = index_of(handle);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    *index = (unsigned)device;
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    snprintf(name, length, "%s", fake_device_name());
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    unsigned char u[16];
    int device = index_of(handle);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    fake_device_uuid(device, u);
    snprintf(text, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
             u[14], u[15]);
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (int device = 0; device < fake_physical_count(); device++) {
        char text[64];
        nvmlDeviceGetUUID(&handles[device], text, sizeof text);
        if (strcmp(text, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)device, handle);
    }
    return NVML_NOT_FOUND;
}

struct pci_info { // nvmlPciInfo_t
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *info) {
    int device = index_of(handle);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)device + 1;
    fake_device_pci_bus_id(device, info->legacy_bus_id, sizeof info->legacy_bus_id);
    fake_device_pci_bus_id(device, info->bus_id, sizeof info->bus_id);
    return NVML_SUCCESS;
}

// Bus ids are written with a domain of four digits or of eight; the bus alone tells ours apart.
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2 || bus == 0)
        return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}

// --- memory ------------------------------------------------------------------------------------------

struct memory { // nvmlMemory_t
    unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    int device = index_of(handle);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    memory->total = fake_device_bytes();
    memory->used = used_bytes(device);
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

struct memory_v2 { // nvmlMemory_v2_t
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    struct memory plain;
    int result = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (result)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

struct process_v1 { // nvmlProcessInfo_v1_t
    unsigned pid;
    unsigned long long bytes;
};

struct process { // nvmlProcessInfo_t, of the functions _v2 and _v3
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
    int device = index_of(handle);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    int pids[MAX_PROCESSES];
    uint64_t bytes[MAX_PROCESSES];
    unsigned capacity = processes ? *count : 0;
    *count = (unsigned)fake_usage_processes(device, pids, bytes, MAX_PROCESSES);
    if (*count > capacity)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        processes[i] = (struct process){(unsigned)pids[i], bytes[i], ~0u, ~0u};
    return NVML_SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *processes) {
    struct process found[MAX_PROCESSES];
    unsigned capacity = *count, have = MAX_PROCESSES;
    int result = nvmlDeviceGetComputeRunningProcesses_v3(handle, &have, found);
    if (result)
        return result;
    *count = have;
    if (have > capacity)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++)
        processes[i] = (struct process_v1){found[i].pid, found[i].bytes};
    return NVML_SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
    *count = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) {
    return NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci_info *info) {
    return NVML_NOT_SUPPORTED;
}
