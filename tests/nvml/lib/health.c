/* A GPU's health, as the control file's `set` lines say; a GPU without any is well. */
#include <string.h>

#include "fake.h"

typedef struct { u32 version, sensor; int degrees; } temperature_v1;
typedef struct { u32 version; int degrees; } margin_v1;
typedef union { double d; int i; u32 u; unsigned long ul; u64 ull; long long ll; unsigned short us; } value;
typedef struct { u32 field, scope; long long stamp, latency; u32 type; nvmlReturn_t result; value value; } field_value;

enum { TEMPERATURE_V1 = 0x0100000C, MARGIN_V1 = 0x01000008, RECOVERY_ACTION = 230, SLOWDOWN = 90, COOL = 40 };
enum { UNCORRECTED = 1, VOLATILE = 0, AMPERE = 7 };

API nvmlReturn_t nvmlDeviceGetRemappedRows(void *handle, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failed)
{
    BEGIN_GPU(handle);
    if (gpu->architecture < AMPERE) return NOT_SUPPORTED;
    *correctable = *uncorrectable = 0;
    *pending = (u32)setting(gpu->index, "remap_pending", 0);
    *failed = (u32)setting(gpu->index, "remap_failed", 0);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(void *handle, u32 *pending)
{
    BEGIN_GPU(handle);
    if (gpu->architecture >= AMPERE) return NOT_SUPPORTED;
    *pending = (u32)setting(gpu->index, "retired_pending", 0);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(void *handle, u32 kind, u32 counter, u64 *count)
{
    BEGIN_GPU(handle);
    if (kind != UNCORRECTED || counter != VOLATILE) return INVALID_ARGUMENT;
    *count = (u64)setting(gpu->index, "ecc", 0);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(void *handle, u32 sensor, u32 *degrees)
{
    BEGIN_GPU(handle);
    if (sensor) return INVALID_ARGUMENT;
    *degrees = (u32)setting(gpu->index, "temperature", COOL);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(void *handle, temperature_v1 *out)
{
    BEGIN_GPU(handle);
    if (out->version != TEMPERATURE_V1) return ARGUMENT_VERSION_MISMATCH;
    out->degrees = (int)setting(gpu->index, "temperature", COOL);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(void *handle, u32 threshold, u32 *degrees)
{
    BEGIN_GPU(handle);
    if (threshold != 1) return NOT_SUPPORTED;
    *degrees = SLOWDOWN;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMarginTemperature(void *handle, margin_v1 *out)
{
    BEGIN_GPU(handle);
    if (out->version != MARGIN_V1) return ARGUMENT_VERSION_MISMATCH;
    out->degrees = (int)setting(gpu->index, "margin", SLOWDOWN - setting(gpu->index, "temperature", COOL));
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(void *handle, u32 link, u32 counter, u64 *count)
{
    BEGIN_GPU(handle);
    if (!gpu->links) return NOT_SUPPORTED;
    if (link >= gpu->links) return INVALID_ARGUMENT;
    *count = (u64)setting(gpu->index, counter == 1 ? "nvlink_recoveries" : "nvlink_replays", 0);
    return SUCCESS;
}

/* Counters of a GPU's use; drivers without a field say so for that field alone. */
static const struct { u32 field; const char *name; } counters[] = {
    {3, "ecc_corrected"}, {4, "ecc"}, {5, "ecc_corrected_ever"}, {6, "ecc_ever"}, {82, "memory_temperature"},
    {83, "energy"}, {138, "nvlink_sent"}, {139, "nvlink_received"}, {197, "pcie_sent"}, {198, "pcie_received"},
};

static nvmlReturn_t field(struct gpu *gpu, field_value *out)
{
    enum { ABSENT = -1, U32 = 1, U64 = 3 };
    if (out->field == RECOVERY_ACTION) {
        out->type = U32;
        out->value.u = (u32)setting(gpu->index, "recovery", 0);
        return (nvmlReturn_t)setting(gpu->index, "recovery_result", SUCCESS);
    }
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        if (counters[i].field != out->field) continue;
        long value = setting(gpu->index, counters[i].name, ABSENT);
        if (value == ABSENT) return NOT_SUPPORTED;
        out->type = U64;
        out->value.ull = (u64)value;
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(void *handle, int count, field_value *values)
{
    BEGIN_GPU(handle);
    for (int i = 0; i < count; i++) values[i].result = field(gpu, &values[i]);
    return SUCCESS;
}
