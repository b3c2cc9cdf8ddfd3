// The structs whose layout the callers rely on, as CUDA 13 has them on 64-bit Linux.
//
// Only fields that the fake fills in carry a telling name; runs of fields that stay zero are
// arrays. `make abi CUDA_INCLUDE=…` compares sizes and offsets with NVIDIA's own headers.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct device_properties { // cudaDeviceProp
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_node_mask;
    size_t total_global_memory;
    size_t shared_memory_per_block;
    int registers_per_block;
    int warp_size;
    size_t memory_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    size_t total_constant_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    int multiprocessors;
    int integrated;
    int can_map_host_memory;
    int texture_and_surface_limits[38];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus;
    int pci_device;
    int pci_domain;
    int tcc_driver;
    int async_engines;
    int unified_addressing;
    int memory_bus_width;
    int l2_cache_bytes;
    int persisting_l2_cache_max_bytes;
    int max_threads_per_multiprocessor;
    int stream_priorities;
    int global_l1_cache;
    int local_l1_cache;
    size_t shared_memory_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory;
    int multi_gpu_board[2];
    int host_native_atomics;
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption;
    int host_pointer_for_registered_memory;
    int cooperative_launch;
    size_t shared_memory_per_block_optin;
    int host_page_tables[2];
    int max_blocks_per_multiprocessor;
    int access_policy_max_window;
    size_t reserved_shared_memory_per_block;
    int host_register;
    int sparse_arrays;
    int host_register_read_only;
    int timeline_semaphores;
    int memory_pools;
    int gpu_direct_and_later[15];
    int reserved[56];
};
_Static_assert(sizeof(struct device_properties) == 1008, "cudaDeviceProp of CUDA 13");

struct pointer_attributes { // cudaPointerAttributes
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
    long reserved[8];
};
_Static_assert(sizeof(struct pointer_attributes) == 88, "cudaPointerAttributes of CUDA 13");

enum pointer_type { // cudaMemoryType
    POINTER_UNREGISTERED = 0,
    POINTER_HOST = 1,
    POINTER_DEVICE = 2,
};

struct function_attributes { // cudaFuncAttributes
    size_t shared_bytes;
    size_t constant_bytes;
    size_t local_bytes;
    int max_threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode;
    int max_dynamic_shared_bytes;
    int others[23];
};
_Static_assert(sizeof(struct function_attributes) == 144, "cudaFuncAttributes of CUDA 13");

struct memory_location { // cudaMemLocation, CUmemLocation
    int type;
    int id;
};

struct pool_properties { // cudaMemPoolProps
    int allocation_type;
    int handle_types;
    struct memory_location location;
    void *security_attributes;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct pool_properties) == 88, "cudaMemPoolProps of CUDA 13");

struct allocation_properties { // CUmemAllocationProp
    int type;
    int requested_handle_types;
    struct memory_location location;
    void *win32_handle_metadata;
    unsigned char flags[8];
};
_Static_assert(sizeof(struct allocation_properties) == 32, "CUmemAllocationProp of CUDA 13");

struct mem_alloc_parameters { // cuMemAlloc_v2_params
    uintptr_t *address;
    size_t bytes;
};

struct mem_create_parameters { // cuMemCreate_params
    uint64_t *handle;
    size_t bytes;
    const struct allocation_properties *properties;
    unsigned long long flags;
};

struct mem_retain_parameters { // cuMemRetainAllocationHandle_params
    uint64_t *handle;
    void *address;
};

struct callback_data { // CUpti_CallbackData
    int site;
    const char *function_name;
    const void *parameters;
    void *result;
    const char *symbol_name;
    void *context;
    uint32_t context_uid;
    uint64_t *correlation_data;
    uint32_t correlation_id;
};
_Static_assert(sizeof(struct callback_data) == 72, "CUpti_CallbackData of CUDA 13");

struct gemm_heuristic { // cublasLtMatmulHeuristicResult_t
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct gemm_heuristic) == 96, "cublasLtMatmulHeuristicResult_t");
