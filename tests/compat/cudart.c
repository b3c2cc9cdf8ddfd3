// The CUDA runtime, as far as PyTorch's caching allocator needs it: memory with a limit, streams
// and events that are names. Built once for each libc10_cuda.so, under the file name and the symbol
// version that it asks for, together with weak functions that refuse for what else it imports.
//
// tests/fake_cuda is the larger one, for the whole of PyTorch; this one has to fit every release,
// so it knows as little as it can, and what it does not know it refuses.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_SUPPORTED = 801 };

#define BYTES_TOTAL ((size_t)1 << 30)
#define SEGMENTS_MAX 64

static struct { char* start; size_t size; } segments[SEGMENTS_MAX];
static size_t bytes_used;
static int is_held;
static int last_error;

// For the driver: events are not over until it says so.
void compat_hold(int hold) { is_held = hold; }

static int failed(int error) { return last_error = error; }

int cudaMalloc(void** pointer, size_t size) {
  if (size > BYTES_TOTAL - bytes_used) return failed(OUT_OF_MEMORY);
  for (int i = 0; i < SEGMENTS_MAX; i++) {
    if (segments[i].start) continue;
    // Like the real one, at a multiple of 2 MiB.
    size_t align = (size_t)2 << 20;
    char* map = mmap(0, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return failed(OUT_OF_MEMORY);
    segments[i].start = (char*)(((uintptr_t)map + align - 1) & ~(align - 1));
    segments[i].size = size;
    bytes_used += size;
    *pointer = segments[i].start;
    return SUCCESS;
  }
  return failed(OUT_OF_MEMORY);
}

int cudaFree(void* pointer) {
  for (int i = 0; pointer && i < SEGMENTS_MAX; i++) {
    if (segments[i].start != pointer) continue;
    bytes_used -= segments[i].size;
    segments[i].start = 0;  // the addresses stay taken: none is ever given out twice
  }
  return SUCCESS;
}

int cudaMemGetInfo(size_t* available, size_t* total) {
  *available = BYTES_TOTAL - bytes_used;
  *total = BYTES_TOTAL;
  return SUCCESS;
}

// No graph holds memory.
int cudaDeviceGetGraphMemAttribute(int device, int what, uint64_t* value) {
  return (void)device, (void)what, *value = 0, SUCCESS;
}

int cudaGetDeviceCount(int* count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int* device) { return *device = 0, SUCCESS; }
int cudaSetDevice(int device) { return device ? failed(101) : SUCCESS; }
int cudaDeviceSynchronize(void) { return SUCCESS; }
int cudaDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }

// The front of cudaDeviceProp, which is the same from CUDA 11 to 13; no caller reads more of it.
struct properties { char name[256], uuid[16], luid[8]; unsigned mask; size_t bytes_total; };
int cudaGetDeviceProperties(struct properties* properties, int device) {
  memset(properties, 0, sizeof *properties);
  properties->bytes_total = BYTES_TOTAL;
  return device ? failed(101) : SUCCESS;
}
int cudaGetDeviceProperties_v2(struct properties* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}

int cudaGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}
const char* cudaGetErrorString(int error) {
  return error == OUT_OF_MEMORY ? "out of memory" : error == NOT_SUPPORTED ? "not supported" : "?";
}
const char* cudaGetErrorName(int error) { return cudaGetErrorString(error); }

int cudaStreamIsCapturing(void* stream, int* status) { return (void)stream, *status = 0, SUCCESS; }
int cudaStreamGetCaptureInfo(void* stream, int* status) { return cudaStreamIsCapturing(stream, status); }
int cudaStreamGetCaptureInfo_v2(void* stream, int* status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaThreadExchangeStreamCaptureMode(int* mode) { return (void)mode, SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -1, SUCCESS;
}
int cudaStreamSynchronize(void* stream) { return (void)stream, SUCCESS; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, SUCCESS;
}

static char an_event;
int cudaEventCreateWithFlags(void** event, unsigned flags) {
  return (void)flags, *event = &an_event, SUCCESS;
}
int cudaEventDestroy(void* event) { return (void)event, SUCCESS; }
int cudaEventRecord(void* event, void* stream) { return (void)event, (void)stream, SUCCESS; }
int cudaEventQuery(void* event) { return (void)event, is_held ? failed(NOT_READY) : SUCCESS; }
int cudaEventSynchronize(void* event) { return (void)event, SUCCESS; }

// The driver has every function, and each refuses.
static int refuse(void) { return NOT_SUPPORTED; }
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                     unsigned long long flags, int* found) {
  (void)name, (void)version, (void)flags;
  return *function = (void*)refuse, *found = 0, SUCCESS;
}
