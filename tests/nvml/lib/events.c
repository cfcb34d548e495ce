/* Sets of events. What the control file's `event` lines say reaches the set that waits first. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

typedef struct { void *device; u64 type, data; u32 gi, ci; } event;

struct set { char registered[MAX_GPUS]; };

enum { XID = 0x8, MIG_CHANGE = 0x100, SUPPORTED = 0x1 | 0x2 | XID | MIG_CHANGE, SLICE_MS = 5 };

API nvmlReturn_t nvmlEventSetCreate(void **set)
{
    BEGIN(NO_GPU);
    *set = calloc(1, sizeof(struct set));
    return *set ? SUCCESS : UNKNOWN;
}

API nvmlReturn_t nvmlEventSetFree(void *set)
{
    BEGIN(NO_GPU);
    free(set);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types)
{
    BEGIN_GPU(handle);
    *types = SUPPORTED;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(void *handle, u64 types, void *set)
{
    BEGIN_GPU(handle);
    if (types & ~(u64)SUPPORTED) return NOT_SUPPORTED;
    ((struct set *)set)->registered[gpu->index] = 1;
    return SUCCESS;
}

API nvmlReturn_t nvmlEventSetWait_v2(void *set, event *out, u32 timeout_ms)
{
    for (u32 waited = 0;; waited += SLICE_MS) {
        BEGIN(NO_GPU);
        int gpu;
        memset(out, 0, sizeof *out);
        if (next_event(&gpu, &out->type, &out->data, &out->gi, &out->ci) && ((struct set *)set)->registered[gpu])
            return out->device = &node.gpu[gpu], SUCCESS;
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(SLICE_MS * 1000);
    }
}
