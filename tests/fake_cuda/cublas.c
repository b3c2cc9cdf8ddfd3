// cuBLAS and cuBLASLt: handles, modes and matrix products that succeed and compute nothing.
//
// The list is what libtorch_cuda.so imports. The result of a product is whatever its memory held
// before, which is zeros in memory that is fresh. The workspaces PyTorch hands to cuBLAS are
// allocated for real, through its caching allocator, so they show up as they do on a device.
//
// What libtorch_cuda_linalg.so needs on top (cuSOLVER, batched triangular solves) is not here.
#include "fake.h"
#include "abi.h"

#include <string.h>

#define ACCEPT(name) \
    int name(void) { return FAKE_SUCCESS; }
#define ACCEPT_SDCZ(before, after) \
    ACCEPT(before##S##after)       \
    ACCEPT(before##D##after)       \
    ACCEPT(before##C##after)       \
    ACCEPT(before##Z##after)

static int give_handle(void **handle) {
    static char anything;
    *handle = &anything;
    return FAKE_SUCCESS;
}

// --- cuBLAS ------------------------------------------------------------------------------------------

static _Thread_local int math_mode, pointer_mode;

int cublasCreate_v2(void **handle) { return give_handle(handle); }

int cublasSetMathMode(void *handle, int mode) {
    math_mode = mode;
    return FAKE_SUCCESS;
}

int cublasGetMathMode(void *handle, int *mode) {
    *mode = math_mode;
    return FAKE_SUCCESS;
}

int cublasSetPointerMode_v2(void *handle, int mode) {
    pointer_mode = mode;
    return FAKE_SUCCESS;
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = pointer_mode;
    return FAKE_SUCCESS;
}

ACCEPT(cublasDestroy_v2)
ACCEPT(cublasSetStream_v2)
ACCEPT(cublasSetWorkspace_v2)

ACCEPT(cublasDotEx)
ACCEPT(cublasSdot_v2)
ACCEPT(cublasDdot_v2)
ACCEPT(cublasCdotc_v2)
ACCEPT(cublasCdotu_v2)
ACCEPT(cublasZdotc_v2)
ACCEPT(cublasZdotu_v2)
ACCEPT(cublasGemmEx)
ACCEPT(cublasSgemmEx)
ACCEPT(cublasGemmStridedBatchedEx)
ACCEPT_SDCZ(cublas, gemm_v2)
ACCEPT_SDCZ(cublas, gemmStridedBatched)
ACCEPT_SDCZ(cublas, gemmBatched)
ACCEPT_SDCZ(cublas, gemv_v2)
ACCEPT_SDCZ(cublas, trsm_v2)
ACCEPT_SDCZ(cublas, trsmBatched)
ACCEPT_SDCZ(cublas, gelsBatched)
ACCEPT_SDCZ(cublas, geqrfBatched)
ACCEPT_SDCZ(cublas, getrfBatched)
ACCEPT_SDCZ(cublas, getrsBatched)

// --- cuBLASLt ----------------------------------------------------------------------------------------

size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtCreate(void **handle) { return give_handle(handle); }

int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    return give_handle(description);
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    return give_handle(layout);
}

int cublasLtMatmulPreferenceCreate(void **preference) { return give_handle(preference); }

// One algorithm, which needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, struct gemm_heuristic *results,
                                   int *count) {
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *count = 1;
    return FAKE_SUCCESS;
}

ACCEPT(cublasLtDestroy)
ACCEPT(cublasLtMatmul)
ACCEPT(cublasLtMatmulDescDestroy)
ACCEPT(cublasLtMatmulDescSetAttribute)
ACCEPT(cublasLtMatrixLayoutDestroy)
ACCEPT(cublasLtMatrixLayoutSetAttribute)
ACCEPT(cublasLtMatmulPreferenceDestroy)
ACCEPT(cublasLtMatmulPreferenceSetAttribute)
