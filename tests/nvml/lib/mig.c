/* MIG: mode, profiles, GPU instances, compute instances, MIG devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

typedef struct {
    u32 id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    u64 mib;
} gi_profile_v1;
typedef struct {
    u32 version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    u64 mib;
    char name[96];
} gi_profile_v2;
typedef struct { void *device; u32 id, profile_id; struct placement placement; } gi_info;
typedef struct { void *device; void *gi; u32 id, profile_id; struct placement placement; } ci_info;
typedef struct { u32 id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; } ci_profile_v1;
typedef struct { u32 version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; char name[96]; } ci_profile_v2;
typedef struct { u32 sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; u64 mib; } attributes;

enum { GI_PROFILE_V2 = 0x02000098, CI_PROFILE_V2 = 0x02000088, PROFILE_COUNT = 0x12 };

/* The slices of a compute instance by its profile index (NVML_COMPUTE_INSTANCE_PROFILE_*), which is also its id here. */
static const u32 CI_SLICES[] = {1, 2, 3, 4, 7, 8, 6};
enum { CI_PROFILES = sizeof CI_SLICES / sizeof *CI_SLICES };

#define BEGIN_GI(handle)                                                     \
    refresh();                                                               \
    struct gi *gi = handle;                                                  \
    if (!gi || gi->kind != KIND_GI || !gi->used) return INVALID_ARGUMENT;    \
    BEGIN(gi->gpu->index)

#define BEGIN_CI(handle)                                                     \
    refresh();                                                               \
    struct ci *ci = handle;                                                  \
    if (!ci || ci->kind != KIND_CI || !ci->used) return INVALID_ARGUMENT;    \
    BEGIN(ci->gi->gpu->index)

#define BEGIN_MIG(handle)                                                    \
    refresh();                                                               \
    BEGIN_GPU(handle);                                                       \
    if (!gpu->mig) return NOT_SUPPORTED

static int gpu_is_cut(struct gpu *gpu)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->gi[i].used) return 1;
    return 0;
}

API nvmlReturn_t nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending)
{
    BEGIN_MIG(handle);
    *current = gpu->mig_mode;
    *pending = gpu->mig_pending;
    return SUCCESS;
}

/*
 * Before Hopper the mode waits for a reset; the call itself succeeds, and `activation` tells. The activation can fail,
 * too: a fault of the function name `activation`.
 */
API nvmlReturn_t nvmlDeviceSetMigMode(void *handle, u32 mode, nvmlReturn_t *activation)
{
    CHANGE;
    BEGIN_MIG(handle);
    if (mode > 1) return INVALID_ARGUMENT;
    if (!mode && gpu_is_cut(gpu)) return IN_USE;
    gpu->mig_pending = mode;
    *activation = SUCCESS;
    if (mode == gpu->mig_mode) return SUCCESS;
    *activation = gpu->mig_at_once ? fault("activation", gpu->index) : RESET_REQUIRED;
    if (*activation == SUCCESS) gpu->mig_mode = mode;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(void *handle, u32 index, gi_profile_v1 *info)
{
    BEGIN_MIG(handle);
    if (index >= PROFILE_COUNT) return INVALID_ARGUMENT;
    struct profile *p = profile_by(gpu, index, 0);
    if (!p) return NOT_SUPPORTED;
    *info = (gi_profile_v1){p->id,       0,           p->slices, p->max, p->sms, p->copy,
                            p->decoders, p->encoders, p->jpeg,   p->ofa, p->mib};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, u32 index, gi_profile_v2 *info)
{
    BEGIN_MIG(handle);
    if (info->version != GI_PROFILE_V2) return ARGUMENT_VERSION_MISMATCH;
    if (index >= PROFILE_COUNT) return INVALID_ARGUMENT;
    struct profile *p = profile_by(gpu, index, 0);
    if (!p) return NOT_SUPPORTED;
    *info = (gi_profile_v2){GI_PROFILE_V2, p->id,       0,           p->slices, p->max, p->sms, p->copy,
                            p->decoders,   p->encoders, p->jpeg,     p->ofa,    p->mib, ""};
    snprintf(info->name, sizeof info->name, "MIG %.90s", p->name);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, u32 id, struct placement *out, u32 *count)
{
    BEGIN_MIG(handle);
    struct profile *p = profile_by(gpu, id, 1);
    if (!p) return NOT_SUPPORTED;
    if (out && *count < p->placements) return INSUFFICIENT_SIZE;
    if (out) memcpy(out, p->placement, p->placements * sizeof *out);
    *count = p->placements;
    return SUCCESS;
}

static int is_free(struct gpu *gpu, struct placement place)
{
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct placement other = gpu->gi[i].placement;
        if (gpu->gi[i].used && place.start < other.start + other.size && other.start < place.start + place.size)
            return 0;
    }
    return 1;
}

static u32 remaining(struct gpu *gpu, struct profile *profile)
{
    u32 free = 0, taken = 0;
    for (u32 i = 0; i < profile->placements; i++) free += (u32)is_free(gpu, profile->placement[i]);
    for (int i = 0; i < MAX_INSTANCES; i++) taken += gpu->gi[i].used && gpu->gi[i].profile == profile;
    return taken + free <= profile->max ? free : profile->max - taken;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(void *handle, u32 id, u32 *count)
{
    BEGIN_MIG(handle);
    struct profile *p = profile_by(gpu, id, 1);
    if (!p || !gpu->mig_mode) return NOT_SUPPORTED;
    *count = remaining(gpu, p);
    return SUCCESS;
}

static struct gi *gi_by_id(struct gpu *gpu, u32 id)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->gi[i].used && gpu->gi[i].id == id) return &gpu->gi[i];
    return NULL;
}

/* As NVML does, number by size and place, which is no index: seven 1g of eight slices are 7 … 13. */
static u32 new_gi_id(struct gpu *gpu, struct placement place)
{
    u32 id = 8 / (place.size < 8 ? place.size : 8) - 1 + place.start / place.size;
    while (gi_by_id(gpu, id)) id++;
    return id;
}

/* Are there engines for one more, though memory slices are free? A30: one `+me`, be it 1g or 2g. */
static int has_engines(struct gpu *gpu, struct profile *wanted)
{
    u32 slices = wanted->slices, copy = wanted->copy, decoders = wanted->decoders, jpeg = wanted->jpeg, ofa = wanted->ofa;
    struct profile *whole = wanted;
    for (u32 i = 0; i < gpu->profiles; i++)
        if (gpu->profile[i].placement[0].size > whole->placement[0].size) whole = &gpu->profile[i];
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct profile *p = gpu->gi[i].profile;
        if (!gpu->gi[i].used) continue;
        slices += p->slices, copy += p->copy, decoders += p->decoders, jpeg += p->jpeg, ofa += p->ofa;
    }
    return slices <= whole->slices && copy <= whole->copy && decoders <= whole->decoders && jpeg <= whole->jpeg
           && ofa <= whole->ofa;
}

static nvmlReturn_t create_gi(struct gpu *gpu, u32 id, const struct placement *wanted, void **out)
{
    struct profile *p = profile_by(gpu, id, 1);
    if (!gpu->mig_mode) return NOT_SUPPORTED;
    if (!p) return INVALID_ARGUMENT;
    if (!remaining(gpu, p) || !has_engines(gpu, p)) return INSUFFICIENT_RESOURCES;
    nvmlReturn_t result = wanted ? INVALID_ARGUMENT : INSUFFICIENT_RESOURCES;
    for (u32 i = 0; i < p->placements; i++) {
        struct placement place = p->placement[i];
        if (wanted && (wanted->start != place.start || wanted->size != place.size)) continue;
        if (is_free(gpu, place)) return (*out = add_gi(gpu, p, place, new_gi_id(gpu, place))) ? SUCCESS : UNKNOWN;
        result = INSUFFICIENT_RESOURCES;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(void *handle, u32 id, void **out)
{
    CHANGE;
    BEGIN_MIG(handle);
    return create_gi(gpu, id, NULL, out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, u32 id, const struct placement *at, void **out)
{
    CHANGE;
    BEGIN_MIG(handle);
    return at ? create_gi(gpu, id, at, out) : INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(void *handle, u32 id, void **out, u32 *count)
{
    BEGIN_MIG(handle);
    if (!gpu->mig_mode) return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->gi[i].used && gpu->gi[i].profile->id == id) out[(*count)++] = &gpu->gi[i];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(void *handle, u32 id, void **out)
{
    BEGIN_MIG(handle);
    if (!gpu->mig_mode) return NOT_SUPPORTED;
    *out = gi_by_id(gpu, id);
    return *out ? SUCCESS : NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(void *handle, gi_info *info)
{
    BEGIN_GI(handle);
    *info = (gi_info){gi->gpu, gi->id, gi->profile->id, gi->placement};
    return SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(void *handle)
{
    CHANGE;
    BEGIN_GI(handle);
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gi->gpu->ci[i].used && gi->gpu->ci[i].gi == gi) return IN_USE;
    gi->used = 0;
    return SUCCESS;
}

static nvmlReturn_t check_ci_profile(struct gi *gi, u32 index, u32 engine)
{
    if (index >= 9 || engine) return INVALID_ARGUMENT;
    return index >= CI_PROFILES || CI_SLICES[index] > gi->profile->slices ? NOT_SUPPORTED : SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(void *handle, u32 index, u32 engine, ci_profile_v1 *info)
{
    BEGIN_GI(handle);
    struct profile *p = gi->profile;
    nvmlReturn_t result = check_ci_profile(gi, index, engine);
    if (result != SUCCESS) return result;
    u32 slices = CI_SLICES[index];
    *info = (ci_profile_v1){index,       slices,      p->slices / slices, p->sms / p->slices * slices, p->copy,
                            p->decoders, p->encoders, p->jpeg,            p->ofa};
    return SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, u32 index, u32 engine, ci_profile_v2 *info)
{
    BEGIN_GI(handle);
    struct profile *p = gi->profile;
    if (info->version != CI_PROFILE_V2) return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = check_ci_profile(gi, index, engine);
    if (result != SUCCESS) return result;
    u32 slices = CI_SLICES[index];
    *info = (ci_profile_v2){CI_PROFILE_V2, index, slices, p->slices / slices, p->sms / p->slices * slices,
                            p->copy, p->decoders, p->encoders, p->jpeg, p->ofa, ""};
    if (slices == p->slices) snprintf(info->name, sizeof info->name, "MIG %.90s", p->name);
    else snprintf(info->name, sizeof info->name, "MIG %uc.%.80s", slices, p->name);
    return SUCCESS;
}

/* The first run of free compute slices, or -1. */
static int free_slices(struct gi *gi, u32 wanted)
{
    for (u32 start = 0; start + wanted <= gi->profile->slices; start++) {
        int taken = 0;
        for (int i = 0; i < MAX_INSTANCES; i++) {
            struct ci *ci = &gi->gpu->ci[i];
            taken |= ci->used && ci->gi == gi && start < ci->start + ci->slices && ci->start < start + wanted;
        }
        if (!taken) return (int)start;
    }
    return -1;
}

static struct ci *ci_by_id(struct gi *gi, u32 id)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gi->gpu->ci[i].used && gi->gpu->ci[i].gi == gi && gi->gpu->ci[i].id == id) return &gi->gpu->ci[i];
    return NULL;
}

/* A UUID never used before, as NVML makes one at each creation. */
static void new_uuid(char *uuid, size_t size)
{
    unsigned char r[16] = {0};
    FILE *random = fopen("/dev/urandom", "r");
    if (!random || fread(r, 1, sizeof r, random) != sizeof r) abort();
    fclose(random);
    snprintf(uuid, size, "MIG-%02x%02x%02x%02x-%02x%02x-5%01x%02x-8%01x%02x-%02x%02x%02x%02x%02x%02x", r[0], r[1], r[2],
             r[3], r[4], r[5], r[6] & 15, r[7], r[8] & 15, r[9], r[10], r[11], r[12], r[13], r[14], r[15]);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(void *handle, u32 id, void **out)
{
    CHANGE;
    BEGIN_GI(handle);
    if (id >= CI_PROFILES || CI_SLICES[id] > gi->profile->slices) return INVALID_ARGUMENT;
    int start = free_slices(gi, CI_SLICES[id]);
    if (start < 0) return INSUFFICIENT_RESOURCES;
    u32 number = 0;
    while (ci_by_id(gi, number)) number++;
    char uuid[64];
    new_uuid(uuid, sizeof uuid);
    *out = add_ci(gi, number, (u32)start, CI_SLICES[id], uuid);
    return *out ? SUCCESS : UNKNOWN;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(void *handle, u32 id, void **out, u32 *count)
{
    BEGIN_GI(handle);
    if (id >= CI_PROFILES) return INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct ci *ci = &gi->gpu->ci[i];
        if (ci->used && ci->gi == gi && ci->slices == CI_SLICES[id]) out[(*count)++] = ci;
    }
    return SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(void *handle, u32 id, void **out)
{
    BEGIN_GI(handle);
    *out = ci_by_id(gi, id);
    return *out ? SUCCESS : NOT_FOUND;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(void *handle, ci_info *info)
{
    BEGIN_CI(handle);
    u32 profile = 0;
    while (CI_SLICES[profile] != ci->slices) profile++;
    /* By the API reference the parent; what drivers really tell is the MIG device. */
    void *device = setting(ci->gi->gpu->index, "ci_tells_parent", 0) ? (void *)ci->gi->gpu : ci;
    *info = (ci_info){device, ci->gi, ci->id, profile, {ci->start, ci->slices}};
    return SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceDestroy(void *handle)
{
    CHANGE;
    BEGIN_CI(handle);
    ci->used = 0;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *count)
{
    refresh();
    BEGIN_GPU(handle);
    *count = 0;
    for (u32 i = 0; i < gpu->profiles; i++)
        if (gpu->mig_mode && gpu->profile[i].max > *count) *count = gpu->profile[i].max;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **out)
{
    BEGIN_MIG(handle);
    if (!gpu->mig_mode) return NOT_SUPPORTED;
    u32 seen = 0;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->ci[i].used && seen++ == index) return *out = &gpu->ci[i], SUCCESS;
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(void *handle, u32 *answer)
{
    struct ci *ci = handle;
    refresh();
    BEGIN(NO_GPU);
    *answer = ci && ci->kind == KIND_CI;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **out)
{
    BEGIN_CI(handle);
    *out = ci->gi->gpu;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(void *handle, u32 *id)
{
    BEGIN_CI(handle);
    *id = ci->gi->id;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(void *handle, u32 *id)
{
    BEGIN_CI(handle);
    *id = ci->id;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(void *handle, attributes *out)
{
    BEGIN_CI(handle);
    struct profile *p = ci->gi->profile;
    *out = (attributes){p->sms / p->slices * ci->slices, p->copy,   p->decoders, p->encoders, p->jpeg, p->ofa,
                        p->slices,                       ci->slices, p->mib};
    return SUCCESS;
}
