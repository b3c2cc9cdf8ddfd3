// The devices: how many, how large, which of them this process sees, what they answer.
//
// Everything comes from the environment, read once, when first asked. All devices are alike
// and differ only in UUID and PCI address. They say compute capability 8.0, because that is
// the newest for which PyTorch takes no path that needs more of CUDA than is faked here.
//
// Not here: MIG, device resets, topology, and CUDA_VISIBLE_DEVICES by UUID (indices only).
#include "fake.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int physical_count;
    int visible_count;
    int visible[FAKE_MAX_DEVICES]; // index on the machine, by visible index
    uint64_t bytes;
    unsigned malloc_us;
    uint64_t copy_bytes_s;
    unsigned node;
} config;

static pthread_once_t config_once = PTHREAD_ONCE_INIT;
static _Thread_local int current_device;
static atomic_bool active[FAKE_MAX_DEVICES];

static uint64_t parse_bytes(const char *text) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    switch (*end) {
    case 'G': case 'g': return value << 30;
    case 'M': case 'm': return value << 20;
    case 'K': case 'k': return value << 10;
    default: return value;
    }
}

// As CUDA does it: the list ends at the first entry that names no device.
static void read_visible_devices(const char *list) {
    config.visible_count = 0;
    while (config.visible_count < FAKE_MAX_DEVICES) {
        char *end;
        long index = strtol(list, &end, 10);
        if (end == list || index < 0 || index >= config.physical_count)
            return;
        config.visible[config.visible_count++] = (int)index;
        if (*end != ',')
            return;
        list = end + 1;
    }
}

static void read_config(void) {
    const char *count = getenv("FAKECUDA_DEVICES");
    const char *bytes = getenv("FAKECUDA_BYTES");
    const char *malloc_us = getenv("FAKECUDA_MALLOC_US");
    const char *copy_mib_s = getenv("FAKECUDA_COPY_MIB_S");
    const char *node = getenv("FAKECUDA_NODE");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    config.physical_count = count ? atoi(count) : 1;
    if (config.physical_count < 0)
        config.physical_count = 0;
    if (config.physical_count > FAKE_MAX_DEVICES)
        config.physical_count = FAKE_MAX_DEVICES;
    config.bytes = bytes ? parse_bytes(bytes) : 16ull << 30;
    config.malloc_us = malloc_us ? (unsigned)atoi(malloc_us) : 0;
    config.copy_bytes_s = copy_mib_s ? strtoull(copy_mib_s, NULL, 10) << 20 : 0;
    config.node = node ? (unsigned)atoi(node) : 0;

    config.visible_count = config.physical_count;
    for (int i = 0; i < config.physical_count; i++)
        config.visible[i] = i;
    if (visible)
        read_visible_devices(visible);
}

static void need_config(void) { pthread_once(&config_once, read_config); }

int fake_physical_count(void) {
    need_config();
    return config.physical_count;
}

int fake_visible_count(void) {
    need_config();
    return config.visible_count;
}

int fake_physical(int device) {
    need_config();
    return device >= 0 && device < config.visible_count ? config.visible[device] : -1;
}

uint64_t fake_device_bytes(void) {
    need_config();
    return config.bytes;
}

unsigned fake_malloc_latency_us(void) {
    need_config();
    return config.malloc_us;
}

uint64_t fake_copy_bytes_per_second(void) {
    need_config();
    return config.copy_bytes_s;
}

const char *fake_device_name(void) { return "Fake GPU"; }

void fake_device_uuid(int physical, unsigned char uuid[16]) {
    static const unsigned char stem[14] = {0xfa, 0x6e, 0xc0, 0xda, 0x00, 0x01, 0x40,
                                           0x00, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00};
    need_config();
    memcpy(uuid, stem, sizeof stem);
    uuid[14] = (unsigned char)config.node;
    uuid[15] = (unsigned char)physical;
}

void fake_device_pci_bus_id(int physical, char *text, int capacity) {
    snprintf(text, (size_t)capacity, "0000:%02X:00.0", physical + 1);
}

// The numbers are those of CUdevice_attribute and cudaDeviceAttr, which agree. What is not
// listed is zero: "not supported".
int fake_device_attribute(int attribute, int device) {
    switch (attribute) {
    case 1: case 2: case 3: return 1024;    // threads per block, block dimensions x and y
    case 4: return 64;                      // block dimension z
    case 5: return 2147483647;              // grid dimension x
    case 6: case 7: return 65535;           // grid dimensions y and z
    case 8: return 48 << 10;                // shared memory per block
    case 9: return 64 << 10;                // constant memory
    case 10: return 32;                     // warp size
    case 11: return 2147483647;             // pitch
    case 12: case 82: return 65536;         // registers per block, per multiprocessor
    case 13: return 1410000;                // clock, kHz
    case 14: return 512;                    // texture alignment
    case 16: return 108;                    // multiprocessors
    case 19: case 31: return 1;             // maps host memory, concurrent kernels
    case 33: return fake_physical(device) + 1; // PCI bus
    case 36: return 1215000;                // memory clock, kHz
    case 37: return 5120;                   // memory bus width
    case 38: return 40 << 20;               // L2 cache
    case 39: return 2048;                   // threads per multiprocessor
    case 40: return 3;                      // copy engines
    case 41: return 1;                      // unified addressing
    case 75: return 8;                      // compute capability, major
    case 76: return 0;                      // compute capability, minor
    case 78: return 1;                      // stream priorities
    case 81: return 164 << 10;              // shared memory per multiprocessor
    case 95: return 1;                      // cooperative launch
    case 97: return 163 << 10;              // shared memory per block, opt-in
    case 99: return 1;                      // host registration
    case 102: return 1;                     // virtual memory management
    case 106: return 32;                    // blocks per multiprocessor
    case 115: return 1;                     // memory pools
    default: return 0;
    }
}

int fake_current_device(void) { return current_device; }

int fake_set_current_device(int device) {
    if (fake_visible_count() == 0)
        return FAKE_NO_DEVICE;
    if (fake_physical(device) < 0)
        return FAKE_INVALID_DEVICE;
    current_device = device;
    fake_activate(device);
    return FAKE_SUCCESS;
}

void fake_activate(int device) { atomic_store_explicit(&active[device], true, memory_order_relaxed); }

bool fake_is_active(int device) { return atomic_load_explicit(&active[device], memory_order_relaxed); }

const char *fake_error_name(int error) {
    switch (error) {
    case FAKE_SUCCESS: return "cudaSuccess";
    case FAKE_INVALID_VALUE: return "cudaErrorInvalidValue";
    case FAKE_OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case FAKE_NO_DEVICE: return "cudaErrorNoDevice";
    case FAKE_INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case FAKE_NOT_FOUND: return "cudaErrorSymbolNotFound";
    case FAKE_NOT_READY: return "cudaErrorNotReady";
    case FAKE_NOT_SUPPORTED: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}

const char *fake_error_text(int error) {
    switch (error) {
    case FAKE_SUCCESS: return "no error";
    case FAKE_INVALID_VALUE: return "invalid argument";
    case FAKE_OUT_OF_MEMORY: return "out of memory";
    case FAKE_NO_DEVICE: return "no CUDA-capable device is detected";
    case FAKE_INVALID_DEVICE: return "invalid device ordinal";
    case FAKE_NOT_FOUND: return "named symbol not found";
    case FAKE_NOT_READY: return "device not ready";
    case FAKE_NOT_SUPPORTED: return "operation not supported";
    default: return "unknown error";
    }
}
