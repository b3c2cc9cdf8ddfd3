// What ctypes cannot do: catch an exception, and be a function that C++ calls without the GIL.
#include <cstddef>

// Calls an allocator's raw_alloc; null when it threw.
extern "C" void* alloc_or_null(void* (*raw_alloc)(void*, std::size_t), void* allocator,
                               std::size_t size) {
  try {
    return raw_alloc(allocator, size);
  } catch (...) {
    return nullptr;
  }
}

// Whether a device has a context. The argument's type changed over the releases; all are one register.
extern "C" bool has_context(long) { return true; }
