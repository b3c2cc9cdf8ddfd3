// A stand-in for PyTorch's flight recorder: answers of several kinds, from a heap that is counted,
// an exception, and no answer at all. Also for tests/collective.rs.
#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <unistd.h>

static std::atomic<int> asked, live;
static int mode;

// Counts what this library's strings have on the heap; hidden, so that nobody else's does.
void *operator new(std::size_t bytes) {
    live++;
    return std::malloc(bytes);
}
void operator delete(void *memory) noexcept {
    if (memory)
        live--;
    std::free(memory);
}
void operator delete(void *memory, std::size_t) noexcept { operator delete(memory); }

struct Watched { // dropped while the exception unwinds, as PyTorch's own values are
    ~Watched() { asked += 100; }
};

namespace c10d {
__attribute__((visibility("default"))) std::string dump_nccl_trace_json(bool collectives, bool active) {
    Watched watched;
    asked++;
    if (collectives || active)
        return "asked for more than is wanted";
    switch (mode) {
    case 0: return "{\"pg_config\":{},\"pg_status\":{\"3\":{\"last_enqueued_collective\":\"812\"}}}";
    case 1: return "{}";
    case 2: return std::string(100, 'x');
    case 3: return std::string(17 << 20, ' ');
    case 5: for (;;) pause();
    default: throw std::runtime_error("not today");
    }
}
} // namespace c10d

extern "C" {
__attribute__((visibility("default"))) void answer(int how) { mode = how; }
__attribute__((visibility("default"))) int asked_so_often(void) { return asked; }
__attribute__((visibility("default"))) int on_the_heap(void) { return live; }
__attribute__((visibility("default"))) void destroy(std::string *string) { string->~basic_string(); }
}
