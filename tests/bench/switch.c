// A switch in front of PyTorch's report, so that one process can measure itself with and without a
// recorder, or with this one and with that one, in any order.
//
// Preloaded in front of everything, it takes the calls that PyTorch makes for each block
// (c10/core/Allocator.h) and passes them to the function that switch_report() was given last: a
// recorder's, or PyTorch's own. It is in the way in every mode alike, so its nanosecond cancels out.
// Until it is switched, the next library in LD_PRELOAD gets the call, if there is one.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*Report)(void *, int64_t, size_t, size_t, uint16_t);

static _Atomic(Report) report;

void switch_report(Report function) { atomic_store(&report, function); }

__attribute__((constructor)) static void to_next(void) {
    void *next = dlsym(RTLD_NEXT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    switch_report((Report)(uintptr_t)next);
}

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *pointer, int64_t size, size_t allocated,
                                                           size_t reserved, uint16_t device) {
    Report function = atomic_load_explicit(&report, memory_order_acquire);
    if (function) {
        function(pointer, size, allocated, reserved, device);
    }
}
