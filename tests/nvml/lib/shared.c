/*
 * The state of MIG in a file, where there is one (`<library>.state`, empty at first): all processes see the same, and
 * it outlives them. A line for each GPU's mode, GPU instance and compute instance, with its slot in `struct gpu`, so
 * that handles stay what they are.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "fake.h"

static void clear(void)
{
    for (int g = 0; g < node.gpus; g++)
        for (int i = 0; i < MAX_INSTANCES; i++) node.gpu[g].gi[i].used = node.gpu[g].ci[i].used = 0;
}

static void load_line(const char *line)
{
    int g, slot, parent;
    u32 a, b, c, d;
    char uuid[96];
    if (sscanf(line, "mode %d %u %u", &g, &a, &b) == 3) {
        node.gpu[g].mig_mode = a;
        node.gpu[g].mig_pending = b;
    } else if (sscanf(line, "gi %d %d %u %u %u %u", &g, &slot, &a, &b, &c, &d) == 6) {
        struct gpu *gpu = &node.gpu[g];
        gpu->gi[slot] = (struct gi){KIND_GI, 1, gpu, profile_by(gpu, b, 1), a, {c, d}};
    } else if (sscanf(line, "ci %d %d %d %u %u %u %95s", &g, &slot, &parent, &a, &b, &c, uuid) == 7) {
        struct gpu *gpu = &node.gpu[g];
        struct ci *ci = &gpu->ci[slot];
        *ci = (struct ci){.kind = KIND_CI, .used = 1, .gi = &gpu->gi[parent], .id = a, .slices = b, .start = c};
        memcpy(ci->uuid, uuid, sizeof uuid);
    }
}

static void load(int file)
{
    char line[256];
    int copy = dup(file), empty = 1;
    if (copy < 0) abort();
    FILE *stream = fdopen(copy, "r");
    rewind(stream);
    while (fgets(line, sizeof line, stream)) {
        if (empty) clear();
        empty = 0;
        load_line(line);
    }
    fclose(stream);
}

static void save(int file)
{
    if (ftruncate(file, 0)) abort();
    int copy = dup(file);
    if (copy < 0) abort();
    FILE *stream = fdopen(copy, "w");
    rewind(stream);
    for (int g = 0; g < node.gpus; g++) {
        struct gpu *gpu = &node.gpu[g];
        fprintf(stream, "mode %d %u %u\n", g, gpu->mig_mode, gpu->mig_pending);
        for (int i = 0; i < MAX_INSTANCES; i++) {
            struct gi *gi = &gpu->gi[i];
            if (gi->used)
                fprintf(stream, "gi %d %d %u %u %u %u\n", g, i, gi->id, gi->profile->id, gi->placement.start,
                        gi->placement.size);
        }
        for (int i = 0; i < MAX_INSTANCES; i++) {
            struct ci *ci = &gpu->ci[i];
            if (ci->used)
                fprintf(stream, "ci %d %d %d %u %u %u %s\n", g, i, (int)(ci->gi - gpu->gi), ci->id, ci->slices,
                        ci->start, ci->uuid);
        }
    }
    fclose(stream);
}

/* Within a change, the functions that it calls must not wait for its own lock. */
static _Thread_local int changing;

void refresh(void)
{
    if (changing || !node.initialized) return;
    int file = open(beside(".state"), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    flock(file, LOCK_SH);
    load(file);
    close(file);
}

struct change begin_change(void)
{
    struct change change = {node.initialized ? open(beside(".state"), O_RDWR | O_CLOEXEC) : -1};
    if (change.file >= 0) {
        flock(change.file, LOCK_EX);
        load(change.file);
        changing = 1;
    }
    return change;
}

void end_change(struct change *change)
{
    if (change->file < 0) return;
    save(change->file);
    changing = 0;
    close(change->file);
}
