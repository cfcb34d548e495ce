/* What GPUs and MIG devices do, as the control file's `set` lines say; without any they are idle. */
#include <string.h>

#include "fake.h"

typedef struct { u32 gpu, memory; } utilization;
typedef struct { char *short_name, *long_name, *unit; } metric_info;
typedef struct { u32 id; nvmlReturn_t result; double value; metric_info info; } gpm_metric;
typedef struct { u32 version, count; void *first, *second; gpm_metric metrics[333]; } gpm_metrics;
typedef struct { u32 version, supported; } gpm_support;
typedef struct { int used, gpu; long gi; } sample;

enum { SM_CLOCK = 1, HOPPER = 9, MAX_SAMPLES = 256, WHOLE_BOARD = -1 };
enum { GRAPHICS = 1, PCIE_SENT = 20 };

static sample samples[MAX_SAMPLES];

API nvmlReturn_t nvmlDeviceGetUtilizationRates(void *handle, utilization *out)
{
    BEGIN_GPU(handle);
    if (gpu->mig_mode) return NOT_SUPPORTED;
    *out = (utilization){(u32)setting(gpu->index, "load", 0), (u32)setting(gpu->index, "load", 0) / 2};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(void *handle, u32 *load, u32 *period)
{
    BEGIN_GPU(handle);
    *load = (u32)setting(gpu->index, "encoder", 0);
    *period = 1000;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(void *handle, u32 *milliwatts)
{
    BEGIN_GPU(handle);
    *milliwatts = (u32)setting(gpu->index, "power", 70000);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(void *handle, u32 kind, u32 *mhz)
{
    BEGIN_GPU(handle);
    *mhz = kind == SM_CLOCK ? 1980 : 2619;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(void *handle, u32 *count)
{
    BEGIN_GPU(handle);
    *count = (u32)setting(gpu->index, "replays", 0);
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmQueryDeviceSupport(void *handle, gpm_support *out)
{
    BEGIN_GPU(handle);
    out->supported = gpu->architecture >= HOPPER;
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(sample **out)
{
    BEGIN(NO_GPU);
    for (int i = 0; i < MAX_SAMPLES; i++) {
        if (samples[i].used) continue;
        samples[i].used = 1;
        *out = &samples[i];
        return SUCCESS;
    }
    return INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlGpmSampleFree(sample *one)
{
    BEGIN(NO_GPU);
    if (one < samples || one >= samples + MAX_SAMPLES || !one->used) return INVALID_ARGUMENT;
    one->used = 0;
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(void *handle, sample *out)
{
    BEGIN_GPU(handle);
    *out = (sample){1, gpu->index, WHOLE_BOARD};
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmMigSampleGet(void *handle, u32 gi, sample *out)
{
    BEGIN_GPU(handle);
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->gi[i].used && gpu->gi[i].id == gi) return *out = (sample){1, gpu->index, gi}, SUCCESS;
    return NOT_FOUND;
}

API nvmlReturn_t nvmlGpmMetricsGet(gpm_metrics *out)
{
    BEGIN(NO_GPU);
    sample *first = out->first, *second = out->second;
    if (!first || !second || !first->used || !second->used || first->gpu != second->gpu || first->gi != second->gi)
        return INVALID_ARGUMENT;
    for (u32 i = 0; i < out->count; i++) {
        gpm_metric *one = &out->metrics[i];
        one->result = one->id == GRAPHICS || one->id == PCIE_SENT ? SUCCESS : NOT_SUPPORTED;
        one->value = one->id == GRAPHICS ? (double)setting(first->gpu, "active", 0) : 3;
    }
    return SUCCESS;
}
