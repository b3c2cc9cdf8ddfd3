// What the cudart_*.c files share: the sticky error, and the all-accepting function.
#pragma once

#include "fake.h"

// Remembers an error for cudaGetLastError, and passes it on.
int cudart_fail(int error);

// A function that takes anything and succeeds: extra arguments do no harm in the C ABI.
#define ACCEPT(name) \
    int name(void) { return FAKE_SUCCESS; }
