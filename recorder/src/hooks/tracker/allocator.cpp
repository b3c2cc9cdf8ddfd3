// A stand-in for libc10_cuda.so: the classes, names and visibilities that the tracker looks for,
// with nothing behind them. Compiled by the tests, each time with one thing wrong (`-D…`).
//
//   OLD       torch before 2.2: no attachAllocatorTraceTracker
//   RENAMED   the entry in c10::CachingDeviceAllocator, as from torch 2.11 on
//   POOL      the entry has a pool, as from torch 2.8 on
//   NO_SLOT   the function is there and not virtual
//   TWICE     a second slot holds the same function
//   OTHER     the allocator in use is another class
//   EMPTY     the allocator has no devices yet
//   HALF      one of its devices is still being made
//   ODD       nothing can be concluded from how it says whether it has devices
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

struct CUstream_st;

namespace c10 {
struct GatheredContext {
  virtual ~GatheredContext() = default;
};

#ifdef RENAMED
namespace CachingDeviceAllocator {
#else
namespace cuda::CUDACachingAllocator {
#endif
struct TraceEntry {
  enum Action { ALLOC };
  Action action_;
  int8_t device_;
  size_t addr_;
  std::shared_ptr<GatheredContext> context_;
  CUstream_st* stream_;
  size_t size_;
#ifdef POOL
  std::pair<unsigned long long, unsigned long long> mempool_;
#endif
};
}  // namespace

namespace cuda::CUDACachingAllocator {
#ifdef RENAMED
using CachingDeviceAllocator::TraceEntry;
#endif
using Tracker = std::function<void(const TraceEntry&)>;

struct CUDAAllocator {
  virtual ~CUDAAllocator() = default;
  virtual bool initialized() = 0;
  virtual void something() {}
#if !defined(OLD) && !defined(NO_SLOT)
  virtual void attachAllocatorTraceTracker(Tracker tracker) = 0;
#endif
#ifdef TWICE
  virtual void again(Tracker tracker) = 0;
#endif
};

namespace Native {
struct DeviceCachingAllocator {
  std::vector<Tracker> trackers;

#ifdef POOL
  __attribute__((noinline)) void record_trace(
      TraceEntry::Action action, size_t addr, size_t size, CUstream_st* stream, int8_t device,
      std::pair<unsigned long long, unsigned long long> pool,
      std::shared_ptr<GatheredContext> context);
#else
  __attribute__((noinline)) void record_trace(
      TraceEntry::Action action, size_t addr, size_t size, CUstream_st* stream, int8_t device,
      std::shared_ptr<GatheredContext> context);
#endif
};

#ifdef POOL
void DeviceCachingAllocator::record_trace(
    TraceEntry::Action action, size_t addr, size_t size, CUstream_st* stream, int8_t device,
    std::pair<unsigned long long, unsigned long long> pool,
    std::shared_ptr<GatheredContext> context) {
  TraceEntry entry{action, device, addr, std::move(context), stream, size, pool};
#else
void DeviceCachingAllocator::record_trace(
    TraceEntry::Action action, size_t addr, size_t size, CUstream_st* stream, int8_t device,
    std::shared_ptr<GatheredContext> context) {
  TraceEntry entry{action, device, addr, std::move(context), stream, size};
#endif
  for (const auto& tracker : trackers) tracker(entry);
}

struct NativeCachingAllocator : CUDAAllocator {
  char others[4096];  // PyTorch has many members before this one
  std::vector<std::unique_ptr<DeviceCachingAllocator>> devices;

  bool initialized() override {
#ifdef ODD
    return devices.size() > 1;
#else
    return !devices.empty();
#endif
  }
#ifndef OLD
#ifdef NO_SLOT
  __attribute__((used, noinline)) void attachAllocatorTraceTracker(Tracker tracker);
#else
  void attachAllocatorTraceTracker(Tracker tracker) override;
#endif
#ifdef TWICE
  void again(Tracker tracker) override;
#endif
#endif
};

#ifndef OLD
// As PyTorch does it: copied for each device, moved into a vector that grows.
void NativeCachingAllocator::attachAllocatorTraceTracker(Tracker tracker) {
  for (auto& device : devices) device->trackers.emplace_back(tracker);
  Tracker copy = std::move(tracker);
  tracker = copy;
}
#endif
#ifdef TWICE
#define ATTACH_NAME                                                          \
  "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator"        \
  "27attachAllocatorTraceTrackerESt8functionIFvRKNS1_10TraceEntryEEE"
__attribute__((alias(ATTACH_NAME))) void NativeCachingAllocator::again(Tracker tracker);
#endif

NativeCachingAllocator native;
}  // namespace Native

struct Other : Native::NativeCachingAllocator {
  void something() override {}
} other;

#ifdef OTHER
EXPORTED CUDAAllocator* allocator = &other;
#else
EXPORTED CUDAAllocator* allocator = &Native::native;
#endif
}  // namespace cuda::CUDACachingAllocator
}  // namespace c10

// Two devices, as far as they are wanted.
extern "C" EXPORTED void init() {
  using namespace c10::cuda::CUDACachingAllocator::Native;
#ifndef EMPTY
  native.devices.resize(2);
  native.devices[1] = std::make_unique<DeviceCachingAllocator>();
#ifndef HALF
  native.devices[0] = std::make_unique<DeviceCachingAllocator>();
#endif
#endif
}

// Something happened on device 1.
extern "C" EXPORTED void happen(int action, size_t addr, size_t size, size_t stream) {
  using namespace c10::cuda::CUDACachingAllocator;
  if (Native::native.devices.empty()) return;
  Native::native.devices[1]->record_trace(
      static_cast<TraceEntry::Action>(action), addr, size, reinterpret_cast<CUstream_st*>(stream), 1,
#ifdef POOL
      {7, 9},
#endif
      std::make_shared<c10::GatheredContext>());
}
