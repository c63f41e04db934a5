/* A libnvidia-ml.so.1 with one GPU, for tests: what a call does not define here, pynvml reports as FunctionNotFound. */
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "570.00", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return index ? 2 : 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, "NVIDIA L40S", size); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strncpy(text, "GPU-stub", size); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) { memory->total = 48305799168ULL; return 0; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) { *mhz = 2520; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { *milliwatts = 123456; return 0; }
