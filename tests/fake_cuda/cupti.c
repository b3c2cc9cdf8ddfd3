// CUPTI: callbacks around some driver calls, and profiling that is switched on without complaint
// and never has anything to report.
//
// The list is what libtorch_cpu.so imports for torch.profiler. The real libcupti would look for
// a real driver and fail. No activity buffer is ever asked for, so a profile has the CPU side and
// the memory events of PyTorch itself, and no kernels.
//
// As with the real one, there is one subscriber in a process. It is called around the driver calls
// that take memory or give it back (FAKE_REPORTED in fake.h) and that it has enabled one by one.
#include "abi.h"
#include "fake.h"

#include <stdatomic.h>

#define ACCEPT(name) \
    int name(void) { return FAKE_SUCCESS; }

#define NO_MORE_RECORDS 12 // CUPTI_ERROR_MAX_LIMIT_REACHED

#define SEVERAL_SUBSCRIBERS 39  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
#define INVALID_PARAMETER 1     // CUPTI_ERROR_INVALID_PARAMETER
#define DRIVER_API 1            // CUPTI_CB_DOMAIN_DRIVER_API
#define FUNCTIONS 1024

typedef void callback(void *user, int domain, uint32_t function, const void *data);

static struct {
    _Atomic(callback *) callback;
    void *user;
    atomic_bool enabled[FUNCTIONS];
} subscription;

static void on_call(unsigned function, bool ends, const void *parameters, int *result) {
    callback *call = subscription.callback;
    uint64_t correlation = 0;
    struct callback_data data = {.site = ends,
                                 .parameters = parameters,
                                 .result = result,
                                 .correlation_data = &correlation};
    if (call && subscription.enabled[function])
        call(subscription.user, DRIVER_API, function, &data);
}

int cuptiSubscribe(void **subscriber, callback *callback_, void *user) {
    callback *none = NULL;
    if (!atomic_compare_exchange_strong(&subscription.callback, &none, callback_))
        return SEVERAL_SUBSCRIBERS;
    subscription.user = user;
    *subscriber = &subscription;
    fake_watch(on_call);
    return FAKE_SUCCESS;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t function) {
    if (subscriber != &subscription)
        return INVALID_PARAMETER;
    if (domain == DRIVER_API && function < FUNCTIONS)
        subscription.enabled[function] = enable;
    return FAKE_SUCCESS;
}

int cuptiUnsubscribe(void *subscriber) {
    if (subscriber != &subscription)
        return INVALID_PARAMETER;
    fake_watch(NULL);
    for (unsigned function = 0; function < FUNCTIONS; ++function)
        subscription.enabled[function] = false;
    subscription.callback = NULL;
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
