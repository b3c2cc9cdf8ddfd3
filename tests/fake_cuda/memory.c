// The memory: every allocation of this process, and the byte limit of every device.
//
// Device memory is an anonymous mapping without swap reservation: it reads zero, and a page
// costs nothing until a host-to-device copy writes something else than zeros to it. So a
// laptop carries eight "80 GiB" devices. A sorted array of ranges answers what an address
// belongs to; allocators above hold hundreds of segments, not millions, so that is enough.
//
// Bytes are counted as asked, rounded up to 512. A real device also loses some to the context,
// to kernels and to page granularity; none of that is here.
#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHARGE_UNIT 512
#define PAGE 4096
#define LARGE_ALIGNMENT (2u << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct fake_range *ranges; // sorted by start
static size_t range_count, range_capacity;

static uint64_t used[FAKE_MAX_DEVICES]; // by visible index

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The number of ranges that start at or below `address`. Call with the lock held.
static size_t ranges_up_to(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int fake_range_add(struct fake_range range) {
    pthread_mutex_lock(&lock);
    if (range_count == range_capacity) {
        size_t capacity = range_capacity ? 2 * range_capacity : 256;
        struct fake_range *grown = realloc(ranges, capacity * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&lock);
            return FAKE_OUT_OF_MEMORY;
        }
        ranges = grown;
        range_capacity = capacity;
    }
    size_t at = ranges_up_to(range.start);
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = range;
    range_count++;
    pthread_mutex_unlock(&lock);
    return FAKE_SUCCESS;
}

bool fake_range_take(uintptr_t start, enum fake_kind kind, struct fake_range *was) {
    pthread_mutex_lock(&lock);
    size_t after = ranges_up_to(start);
    bool found = after > 0 && ranges[after - 1].start == start && ranges[after - 1].kind == kind;
    if (found) {
        *was = ranges[after - 1];
        memmove(ranges + after - 1, ranges + after, (range_count - after) * sizeof *ranges);
        range_count--;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool fake_range_find(const void *inside, struct fake_range *found) {
    uintptr_t address = (uintptr_t)inside;
    pthread_mutex_lock(&lock);
    size_t after = ranges_up_to(address);
    bool is_inside = after > 0 && address - ranges[after - 1].start < ranges[after - 1].bytes;
    if (is_inside)
        *found = ranges[after - 1];
    pthread_mutex_unlock(&lock);
    return is_inside;
}

int fake_charge(int device, size_t bytes) {
    int physical = fake_physical(device);
    if (physical < 0)
        return FAKE_INVALID_DEVICE;
    uint64_t elsewhere = fake_usage_of_others(physical);
    int result = FAKE_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    uint64_t taken = used[device] + elsewhere;
    if (taken <= fake_device_bytes() && bytes <= fake_device_bytes() - taken) {
        used[device] += bytes;
        fake_usage_publish(physical, used[device]);
        fake_activate(device);
        result = FAKE_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void fake_discharge(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    used[device] -= bytes;
    fake_usage_publish(fake_physical(device), used[device]);
    pthread_mutex_unlock(&lock);
}

void fake_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    uint64_t elsewhere = fake_usage_of_others(fake_physical(device));
    pthread_mutex_lock(&lock);
    uint64_t taken = used[device] + elsewhere;
    pthread_mutex_unlock(&lock);
    *total_bytes = fake_device_bytes();
    *free_bytes = taken < *total_bytes ? *total_bytes - taken : 0;
}

// Large blocks start on a 2 MiB boundary, as they do on a device.
static void *map_zeros(size_t bytes) {
    size_t slack = bytes >= LARGE_ALIGNMENT ? LARGE_ALIGNMENT : 0;
    size_t length = round_up(bytes, PAGE);
    char *mapped = mmap(NULL, length + slack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    char *start = slack ? (char *)round_up((uintptr_t)mapped, slack) : mapped;
    if (start != mapped)
        munmap(mapped, (size_t)(start - mapped));
    if (start + length != mapped + length + slack)
        munmap(start + length, (size_t)(mapped + slack - start));
    madvise(start, length, MADV_NOHUGEPAGE);
    return start;
}

static bool is_on_device(enum fake_kind kind) {
    return kind == FAKE_DEVICE_MEMORY || kind == FAKE_POOL_MEMORY;
}

int fake_allocate(void **address, size_t bytes, enum fake_kind kind, int device, void *owner) {
    *address = NULL;
    if (bytes == 0)
        return FAKE_SUCCESS;
    if (fake_malloc_latency_us() && kind == FAKE_DEVICE_MEMORY)
        usleep(fake_malloc_latency_us());
    if (bytes > SIZE_MAX / 2)
        return FAKE_OUT_OF_MEMORY;
    bytes = round_up(bytes, CHARGE_UNIT);
    int error = is_on_device(kind) ? fake_charge(device, bytes) : FAKE_SUCCESS;
    if (error)
        return error;
    void *start = map_zeros(bytes);
    error = start ? fake_range_add((struct fake_range){(uintptr_t)start, bytes, kind, device, owner})
                  : FAKE_OUT_OF_MEMORY;
    if (error) {
        if (start)
            munmap(start, round_up(bytes, PAGE));
        if (is_on_device(kind))
            fake_discharge(device, bytes);
        return error;
    }
    *address = start;
    return FAKE_SUCCESS;
}

int fake_release(void *address, enum fake_kind kind, struct fake_range *was) {
    struct fake_range range;
    if (!fake_range_take((uintptr_t)address, kind, &range))
        return FAKE_INVALID_VALUE;
    munmap(address, round_up(range.bytes, PAGE));
    if (is_on_device(kind))
        fake_discharge(range.device, range.bytes);
    if (was)
        *was = range;
    return FAKE_SUCCESS;
}

void fake_copy(void *destination, const void *source, size_t bytes) {
    char *to = destination;
    const char *from = source;
    if (to == from)
        return;
    while (bytes > 0) {
        size_t chunk = PAGE - (uintptr_t)to % PAGE;
        if (chunk > bytes)
            chunk = bytes;
        if (memcmp(to, from, chunk) != 0)
            memmove(to, from, chunk);
        to += chunk;
        from += chunk;
        bytes -= chunk;
    }
}
