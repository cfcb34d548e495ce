/* The system, and a GPU's own facts. */
#include <stdio.h>
#include <string.h>

#include "fake.h"

typedef struct { char legacy[16]; u32 domain, bus, device, device_id, subsystem; char bus_id[32]; } pci_info;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u32 version; unsigned char cluster[16]; nvmlReturn_t status; u32 clique, state, health; } fabric_v2;
typedef struct { u32 version, value; } addressing_v1;

enum { MEMORY_V2 = 0x02000028, FABRIC_V2 = 0x02000024, ADDRESSING_V1 = 0x01000008 };

static nvmlReturn_t text(char *buffer, u32 length, const char *value)
{
    return snprintf(buffer, length, "%s", value) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

static void pci(pci_info *info, const char *bus, u32 device_id)
{
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", bus);
    sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%04x:%02x:%02x.0", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0xff);
    info->device_id = device_id << 16 | 0x10de;
}

API nvmlReturn_t nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    nvmlReturn_t result = fault(__func__, NO_GPU);
    if (result != SUCCESS || node.initialized++) return result;
    result = load_config();
    node.initialized = result == SUCCESS;
    return result;
}

API nvmlReturn_t nvmlShutdown(void)
{
    BEGIN(NO_GPU);
    node.initialized--;
    return SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
    static _Thread_local char message[40];
    snprintf(message, sizeof message, "Fake error %d", result);
    return message;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, u32 length)
{
    BEGIN(NO_GPU);
    return text(version, length, node.driver);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    BEGIN(NO_GPU);
    *version = node.cuda;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(u32 *count)
{
    BEGIN(NO_GPU);
    *count = (u32)node.gpus;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle)
{
    BEGIN((int)index);
    if (index >= (u32)node.gpus) return INVALID_ARGUMENT;
    *handle = &node.gpu[index];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    BEGIN(NO_GPU);
    for (int i = 0; i < node.gpus; i++) {
        if (!strcmp(node.gpu[i].uuid, uuid)) return *handle = &node.gpu[i], fault(__func__, i);
        for (int k = 0; k < MAX_INSTANCES; k++)
            if (node.gpu[i].ci[k].used && !strcmp(node.gpu[i].ci[k].uuid, uuid))
                return *handle = &node.gpu[i].ci[k], fault(__func__, i);
    }
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetUUID(void *handle, char *uuid, u32 length)
{
    struct ci *ci = handle;
    if (ci && ci->kind == KIND_CI) {
        BEGIN(ci->gi->gpu->index);
        return ci->used ? text(uuid, length, ci->uuid) : INVALID_ARGUMENT;
    }
    BEGIN_GPU(handle);
    nvmlReturn_t result = text(uuid, length, gpu->uuid);
    alias(gpu->index, uuid);
    return result;
}

API nvmlReturn_t nvmlDeviceGetName(void *handle, char *name, u32 length)
{
    BEGIN_GPU(handle);
    return text(name, length, gpu->name);
}

API nvmlReturn_t nvmlDeviceGetIndex(void *handle, u32 *index)
{
    BEGIN_GPU(handle);
    *index = (u32)gpu->index;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(void *handle, u32 *minor)
{
    BEGIN_GPU(handle);
    if (gpu->minor < 0) return NOT_SUPPORTED;
    *minor = (u32)gpu->minor;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBrand(void *handle, u32 *brand)
{
    BEGIN_GPU(handle);
    *brand = gpu->brand;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetArchitecture(void *handle, u32 *architecture)
{
    BEGIN_GPU(handle);
    *architecture = gpu->architecture;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    BEGIN_GPU(handle);
    *major = gpu->major_cc;
    *minor = gpu->minor_cc;
    return SUCCESS;
}

/* How much memory a GPU or a MIG device has, and how much is in use. */
static nvmlReturn_t memory_of(const char *function, void *handle, u64 *total, u64 *used)
{
    struct ci *ci = handle;
    struct gpu *gpu = ci && ci->kind == KIND_CI ? ci->gi->gpu : as_gpu(handle);
    if (!node.initialized) return UNINITIALIZED;
    if (!gpu) return INVALID_ARGUMENT;
    nvmlReturn_t result = fault(function, gpu->index);
    if (result != SUCCESS) return result;
    *total = ci->kind == KIND_CI ? ci->gi->profile->mib << 20 : gpu->memory;
    *used = (u64)setting(gpu->index, ci->kind == KIND_CI ? "mig_used" : "used", 0) << 20;
    return *total ? SUCCESS : NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory)
{
    u64 total = 0, used = 0;
    nvmlReturn_t result = memory_of(__func__, handle, &total, &used);
    if (result == SUCCESS) *memory = (memory_v1){total, total - used, used};
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory)
{
    u64 total = 0, used = 0;
    if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = memory_of(__func__, handle, &total, &used);
    if (result == SUCCESS) *memory = (memory_v2){MEMORY_V2, total, 0, total - used, used};
    return result;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(void *handle, addressing_v1 *mode)
{
    BEGIN_GPU(handle);
    if (mode->version != ADDRESSING_V1) return ARGUMENT_VERSION_MISMATCH;
    mode->value = gpu->addressing;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info)
{
    BEGIN_GPU(handle);
    pci(info, gpu->bus, gpu->device_id);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeMode(void *handle, u32 *mode)
{
    BEGIN_GPU(handle);
    *mode = gpu->compute_mode;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetComputeMode(void *handle, u32 mode)
{
    BEGIN_GPU(handle);
    gpu->compute_mode = mode;
    return SUCCESS;
}

/* Drivers answer 'invalid' for a link beyond the last, and 'not supported' where there is no NVLink at all. */
static nvmlReturn_t find_link(struct gpu *gpu, u32 number)
{
    if (!gpu->links) return NOT_SUPPORTED;
    return number < gpu->links ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(void *handle, u32 number, u32 *active)
{
    BEGIN_GPU(handle);
    nvmlReturn_t result = find_link(gpu, number);
    if (result == SUCCESS) *active = (u32)gpu->link[number].active;
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, u32 number, u32 *type)
{
    BEGIN_GPU(handle);
    nvmlReturn_t result = find_link(gpu, number);
    if (result == SUCCESS) *type = gpu->link[number].type;
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, u32 number, pci_info *info)
{
    BEGIN_GPU(handle);
    nvmlReturn_t result = find_link(gpu, number);
    if (result != SUCCESS) return result;
    if (!gpu->link[number].bus[0]) return NOT_SUPPORTED;
    pci(info, gpu->link[number].bus, 0);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v2 *info)
{
    BEGIN_GPU(handle);
    if (info->version != FABRIC_V2) return ARGUMENT_VERSION_MISMATCH;
    if (gpu->fabric < 0) return NOT_SUPPORTED;
    info->state = (u32)setting(gpu->index, "fabric_state", gpu->fabric);
    info->status = (nvmlReturn_t)setting(gpu->index, "fabric_status", SUCCESS);
    info->clique = gpu->clique;
    info->health = (u32)setting(gpu->index, "fabric_health", 0);
    memcpy(info->cluster, gpu->cluster, sizeof info->cluster);
    return SUCCESS;
}
