// Compares abi.h with NVIDIA's headers; compiled by `make abi`, never linked into anything.
#include "abi.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, field, theirs, their_field) \
    _Static_assert(offsetof(struct ours, field) == offsetof(theirs, their_field), #their_field)

#define PROPERTY(ours, theirs) SAME_PLACE(device_properties, ours, struct cudaDeviceProp, theirs)
SAME_SIZE(device_properties, struct cudaDeviceProp);
PROPERTY(uuid, uuid);
PROPERTY(total_global_memory, totalGlobalMem);
PROPERTY(max_grid_size, maxGridSize);
PROPERTY(major, major);
PROPERTY(multiprocessors, multiProcessorCount);
PROPERTY(texture_and_surface_limits, maxTexture1D);
PROPERTY(surface_alignment, surfaceAlignment);
PROPERTY(pci_bus, pciBusID);
PROPERTY(l2_cache_bytes, l2CacheSize);
PROPERTY(max_threads_per_multiprocessor, maxThreadsPerMultiProcessor);
PROPERTY(shared_memory_per_multiprocessor, sharedMemPerMultiprocessor);
PROPERTY(registers_per_multiprocessor, regsPerMultiprocessor);
PROPERTY(cooperative_launch, cooperativeLaunch);
PROPERTY(shared_memory_per_block_optin, sharedMemPerBlockOptin);
PROPERTY(max_blocks_per_multiprocessor, maxBlocksPerMultiProcessor);
PROPERTY(host_register, hostRegisterSupported);
PROPERTY(memory_pools, memoryPoolsSupported);
PROPERTY(reserved, reserved);

SAME_SIZE(pointer_attributes, struct cudaPointerAttributes);
SAME_PLACE(pointer_attributes, host_pointer, struct cudaPointerAttributes, hostPointer);

SAME_SIZE(function_attributes, struct cudaFuncAttributes);
SAME_PLACE(function_attributes, max_threads_per_block, struct cudaFuncAttributes, maxThreadsPerBlock);
SAME_PLACE(function_attributes, max_dynamic_shared_bytes, struct cudaFuncAttributes,
           maxDynamicSharedSizeBytes);

SAME_SIZE(pool_properties, struct cudaMemPoolProps);
SAME_PLACE(pool_properties, location, struct cudaMemPoolProps, location);

SAME_SIZE(allocation_properties, CUmemAllocationProp);
SAME_PLACE(allocation_properties, location, CUmemAllocationProp, location);
