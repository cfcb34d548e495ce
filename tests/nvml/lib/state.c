/* The node's GPUs, as the configuration file describes them: one fact a line, a GPU's facts after its `gpu` line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct node node;

struct gpu *as_gpu(void *handle)
{
    struct gpu *gpu = handle;
    return gpu && gpu->kind == KIND_GPU ? gpu : NULL;
}

struct profile *profile_by(struct gpu *gpu, u32 number, int by_id)
{
    for (u32 i = 0; i < gpu->profiles; i++)
        if ((by_id ? gpu->profile[i].id : gpu->profile[i].index) == number) return &gpu->profile[i];
    return NULL;
}

struct gi *add_gi(struct gpu *gpu, struct profile *profile, struct placement placement, u32 id)
{
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct gi *gi = &gpu->gi[i];
        if (gi->used) continue;
        *gi = (struct gi){KIND_GI, 1, gpu, profile, id, placement};
        return gi;
    }
    return NULL;
}

struct ci *add_ci(struct gi *gi, u32 id, u32 start, u32 slices, const char *uuid)
{
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct ci *ci = &gi->gpu->ci[i];
        if (ci->used) continue;
        *ci = (struct ci){.kind = KIND_CI, .used = 1, .gi = gi, .id = id, .slices = slices, .start = start};
        snprintf(ci->uuid, sizeof ci->uuid, "%s", uuid);
        return ci;
    }
    return NULL;
}

static int begin_gpu(const char *uuid)
{
    if (node.gpus == MAX_GPUS) return 0;
    struct gpu *gpu = &node.gpu[node.gpus];
    *gpu = (struct gpu){.kind = KIND_GPU, .index = node.gpus, .minor = -1, .fabric = -1};
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    node.gpus++;
    return 1;
}

static int set_profile(struct gpu *gpu, const char *rest)
{
    if (gpu->profiles == MAX_PROFILES) return 0;
    struct profile *p = &gpu->profile[gpu->profiles++];
    return sscanf(rest, "%u %u %u %u %llu %u %u %u %u %u %u %95[^\n]", &p->index, &p->id, &p->slices, &p->max, &p->mib,
                  &p->sms, &p->copy, &p->decoders, &p->encoders, &p->jpeg, &p->ofa, p->name) == 12;
}

static int set_placement(struct gpu *gpu, const char *rest)
{
    if (!gpu->profiles) return 0;
    struct profile *p = &gpu->profile[gpu->profiles - 1];
    if (p->placements == MAX_PLACEMENTS) return 0;
    struct placement *place = &p->placement[p->placements++];
    return sscanf(rest, "%u %u", &place->start, &place->size) == 2;
}

static int set_link(struct gpu *gpu, const char *rest)
{
    u32 number, type;
    int active;
    char bus[32] = "";
    if (sscanf(rest, "%u %d %u %31s", &number, &active, &type, bus) < 3 || number >= MAX_LINKS) return 0;
    gpu->link[number] = (struct link){.active = active, .type = type};
    memcpy(gpu->link[number].bus, bus, sizeof bus);
    return 1;
}

static int set_fabric(struct gpu *gpu, const char *rest)
{
    int at = 0;
    if (sscanf(rest, "%d %u %n", &gpu->fabric, &gpu->clique, &at) != 2) return 0;
    for (int i = 0; i < 16; i++)
        if (sscanf(rest + at + 2 * i, "%2hhx", &gpu->cluster[i]) != 1) return 0;
    return 1;
}

static int set_instance(struct gpu *gpu, const char *rest)
{
    u32 gi_id, profile_id, gi_start, size, ci_id, ci_start, slices;
    char uuid[96];
    if (sscanf(rest, "%u %u %u %u %u %u %u %95s", &gi_id, &profile_id, &gi_start, &size, &ci_id, &ci_start, &slices,
               uuid) != 8)
        return 0;
    struct gi *gi = NULL;
    for (int i = 0; i < MAX_INSTANCES && !gi; i++)
        if (gpu->gi[i].used && gpu->gi[i].id == gi_id) gi = &gpu->gi[i];
    if (!gi) gi = add_gi(gpu, profile_by(gpu, profile_id, 1), (struct placement){gi_start, size}, gi_id);
    return gi && gi->profile && add_ci(gi, ci_id, ci_start, slices, uuid);
}

static int set_gpu(struct gpu *gpu, const char *key, const char *rest)
{
    if (!strcmp(key, "name")) return sscanf(rest, "%95[^\n]", gpu->name) == 1;
    if (!strcmp(key, "minor")) return sscanf(rest, "%d", &gpu->minor) == 1;
    if (!strcmp(key, "bus")) return sscanf(rest, "%31s %x", gpu->bus, &gpu->device_id) == 2;
    if (!strcmp(key, "brand")) return sscanf(rest, "%u", &gpu->brand) == 1;
    if (!strcmp(key, "architecture")) return sscanf(rest, "%u", &gpu->architecture) == 1;
    if (!strcmp(key, "capability")) return sscanf(rest, "%d %d", &gpu->major_cc, &gpu->minor_cc) == 2;
    if (!strcmp(key, "memory")) return sscanf(rest, "%llu", &gpu->memory) == 1;
    if (!strcmp(key, "addressing")) return sscanf(rest, "%u", &gpu->addressing) == 1;
    if (!strcmp(key, "links")) return sscanf(rest, "%u", &gpu->links) == 1;
    if (!strcmp(key, "link")) return set_link(gpu, rest);
    if (!strcmp(key, "fabric")) return set_fabric(gpu, rest);
    if (!strcmp(key, "mig"))
        return (gpu->mig = sscanf(rest, "%u %u %u", &gpu->mig_mode, &gpu->mig_pending, &gpu->mig_at_once) == 3);
    if (!strcmp(key, "profile")) return set_profile(gpu, rest);
    if (!strcmp(key, "place")) return set_placement(gpu, rest);
    if (!strcmp(key, "instance")) return set_instance(gpu, rest);
    return 0;
}

static int set_line(const char *line)
{
    char key[32];
    int at = 0;
    if (sscanf(line, "%31s %n", key, &at) != 1) return 1; /* empty */
    const char *rest = line + at;
    if (!strcmp(key, "driver")) return sscanf(rest, "%79s", node.driver) == 1;
    if (!strcmp(key, "cuda")) return sscanf(rest, "%d", &node.cuda) == 1;
    if (!strcmp(key, "gpu")) {
        char uuid[96];
        return sscanf(rest, "%95s", uuid) == 1 && begin_gpu(uuid);
    }
    return node.gpus && set_gpu(&node.gpu[node.gpus - 1], key, rest);
}

nvmlReturn_t load_config(void)
{
    FILE *file = fopen(beside(".conf"), "r");
    if (!file) return DRIVER_NOT_LOADED;
    memset(&node, 0, sizeof node);
    char line[512];
    int good = 1;
    while (good && fgets(line, sizeof line, file)) {
        good = set_line(line);
        if (!good) fprintf(stderr, "fake NVML: bad line in %s: %s", beside(".conf"), line);
    }
    fclose(file);
    return good ? SUCCESS : UNKNOWN;
}
