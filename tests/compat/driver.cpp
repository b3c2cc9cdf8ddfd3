// Calls that can throw, for a caller that cannot catch: Python's ctypes.
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
