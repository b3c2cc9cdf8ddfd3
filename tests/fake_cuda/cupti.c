// CUPTI: profiling that is switched on without complaint and never has anything to report.
//
// The list is what libtorch_cpu.so imports for torch.profiler. The real libcupti would look for
// a real driver and fail. No callback is ever called and no activity buffer ever asked for, so a
// profile has the CPU side and the memory events of PyTorch itself, and no kernels.
#include "fake.h"

#define ACCEPT(name) \
    int name(void) { return FAKE_SUCCESS; }

#define NO_MORE_RECORDS 12 // CUPTI_ERROR_MAX_LIMIT_REACHED

int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    static char anything;
    *subscriber = &anything;
    return FAKE_SUCCESS;
}

int cuptiGetVersion(uint32_t *version) {
    *version = 130000;
    return FAKE_SUCCESS;
}

int cuptiGetResultString(int result, const char **text) {
    *text = result ? "CUPTI_ERROR" : "CUPTI_SUCCESS";
    return FAKE_SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, void **record) { return NO_MORE_RECORDS; }

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    *dropped = 0;
    return FAKE_SUCCESS;
}

int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
    if (last)
        *last = 0;
    return FAKE_SUCCESS;
}

ACCEPT(cuptiUnsubscribe)
ACCEPT(cuptiEnableCallback)
ACCEPT(cuptiEnableDomain)
ACCEPT(cuptiFinalize)
ACCEPT(cuptiActivityEnable)
ACCEPT(cuptiActivityDisable)
ACCEPT(cuptiActivityEnableCudaEventDeviceTimestamps)
ACCEPT(cuptiActivityEnableDriverApi)
ACCEPT(cuptiActivityEnableRuntimeApi)
ACCEPT(cuptiActivityFlushAll)
ACCEPT(cuptiActivityPushExternalCorrelationId)
ACCEPT(cuptiActivityRegisterCallbacks)
ACCEPT(cuptiActivityRegisterTimestampCallback)
ACCEPT(cuptiActivitySetAttribute)
