// CUDA's runtime as far as ONNX Runtime's CUDA provider calls it, on a machine without a GPU. Memory of the device is
// plain memory, copies copy, kernels do nothing, and every call that could break the capture of a stream is logged, a
// line each: name, bytes, and for a copy its ends (H or D). `cuda_stand_in.py` adds all other functions, which return
// 0.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE* log_file;

static void record(const char* name, size_t bytes, const char* more) {
  pthread_mutex_lock(&lock);
  if (log_file == NULL) log_file = fopen(getenv("CUDA_STAND_IN_LOG"), "a");
  fprintf(log_file, "%s %zu %s\n", name, bytes, more);
  fflush(log_file);
  pthread_mutex_unlock(&lock);
}

void stand_in_mark(const char* what) { record("mark", 0, what); }

struct Allocation {
  char* begin;
  size_t bytes;
  struct Allocation* next;
};
static struct Allocation* allocations;  // never freed, so that an address determines its device

static int on_device(const void* address) {
  for (const struct Allocation* a = allocations; a != NULL; a = a->next)
    if ((const char*)address >= a->begin && (const char*)address < a->begin + a->bytes) return 1;
  return 0;
}

static cudaError_t allocate(const char* name, void** to, size_t bytes, int device) {
  record(name, bytes, "");
  if (posix_memalign(to, 512, bytes + 512) != 0) return cudaErrorMemoryAllocation;
  memset(*to, 0, bytes + 512);
  if (!device) return cudaSuccess;
  struct Allocation* made = malloc(sizeof *made);
  made->begin = *to;
  made->bytes = bytes + 512;
  pthread_mutex_lock(&lock);
  made->next = allocations;
  allocations = made;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** to, size_t bytes) { return allocate("cudaMalloc", to, bytes, 1); }
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned flags) { return allocate("cudaHostAlloc", to, bytes, 0); }
cudaError_t cudaMallocHost(void** to, size_t bytes) { return allocate("cudaMallocHost", to, bytes, 0); }

#define RECORD(name, parameters) \
  cudaError_t name parameters {  \
    record(#name, 0, "");        \
    return cudaSuccess;          \
  }
RECORD(cudaFree, (void* address))
RECORD(cudaFreeHost, (void* address))
RECORD(cudaStreamSynchronize, (cudaStream_t stream))
RECORD(cudaDeviceSynchronize, (void))
RECORD(cudaEventSynchronize, (cudaEvent_t event))

static cudaError_t copy(const char* name, void* to, const void* from, size_t bytes) {
  const char ends[] = {on_device(from) ? 'D' : 'H', on_device(to) ? 'D' : 'H', 0};
  record(name, bytes, ends);
  memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  return copy("cudaMemcpy", to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, bytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  record("cudaLaunchHostFunc", 0, "");
  function(data);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  record("cudaLaunchKernel", 0, "");
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t s) {
  return cudaLaunchKernel(f, grid, block, arguments, shared, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* f, void** arguments) {
  return cudaLaunchKernel(f, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}

// A Hopper GPU of 132 multiprocessors.
static int attribute(enum cudaDeviceAttr wanted) {
  switch (wanted) {
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 * 1024;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 227 * 1024;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 228 * 1024;
    default: return 1;
  }
}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr wanted, int device) {
  *value = attribute(wanted);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* found, int device) {
  memset(found, 0, sizeof *found);
  strcpy(found->name, "None");
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->totalGlobalMem = 140ull << 30;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->sharedMemPerBlock = 48 * 1024;
  found->sharedMemPerBlockOptin = 227 * 1024;
  found->sharedMemPerMultiprocessor = 228 * 1024;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->l2CacheSize = 60 << 20;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 0x7fffffff;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = 140ull << 30;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* found, const void* address) {
  memset(found, 0, sizeof *found);
  found->type = on_device(address) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* found, const void* function) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t shared, unsigned flags) {
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

// Handles: their addresses are all that counts.
static cudaError_t handle(void* to) { return *(void**)to = malloc(64), cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return handle(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return handle(stream); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return handle(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) { return handle(event); }
const char* cudaGetErrorName(cudaError_t error) { return "an error of the stand-in"; }
const char* cudaGetErrorString(cudaError_t error) { return "an error of the stand-in"; }

// What nvcc's launch syntax calls.
struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static __thread struct Configuration pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  pushed = (struct Configuration){grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *(void**)stream = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = (cudaKernel_t)function, cudaSuccess;
}
void** __cudaRegisterFatBinary(void* binary) {
  static void* registered;
  return &registered;
}
