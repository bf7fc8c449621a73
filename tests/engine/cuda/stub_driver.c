// A driver library without a device, for cuDNN to compile and load its kernels with. It accepts every
// module and refuses what needs a device. It is linked as libcuda.so.1, the name that cuDNN opens, and
// has the functions that cuDNN 9.19 looks up.

enum { kSuccess = 0, kNotSupported = 801 };

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuLibraryLoadData(void** library, const void* code, void* jit_options, void* jit_values,
                      unsigned jit_count, void* options, void* values, unsigned count) {
  (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
  (void)options, (void)values, (void)count;
  *library = (void*)1;
  return kSuccess;
}

int cuLibraryUnload(void* library) {
  (void)library;
  return kSuccess;
}

int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  (void)library, (void)name;
  *kernel = (void*)1;
  return kSuccess;
}

#define REFUSED(name) \
  int name(void) { return kNotSupported; }
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetCount)
REFUSED(cuGetErrorName)
REFUSED(cuGetErrorString)
REFUSED(cuInit)
REFUSED(cuKernelGetAttribute)
REFUSED(cuKernelSetAttribute)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate)
REFUSED(cuLinkDestroy)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
