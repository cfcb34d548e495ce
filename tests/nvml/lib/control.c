/*
 * Faults from a control file, read again at each call. One fault a line; <gpu> is an index, or * for any call:
 *
 *   fail <function> <code> <gpu> [<times>]   the function (or *) returns the code, for ever or so many times
 *   hang <function> <gpu>                    the function does not return while this line is there
 *   alias <gpu> <uuid> <calls>               after so many honest answers the GPU says another UUID
 *   set <gpu> <name> <value>                 what the GPU's queries answer (see health.c, usage.c)
 *   event <gpu> <type> <data> <gi> <ci>      an event; each line is delivered once, in order
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

enum { MAX_COUNTED = 64 };

static struct { char line[256]; int calls; } counted[MAX_COUNTED];
static int delivered;

/* The path of this library's file, or of $FAKE_NVML, with a suffix: each copy of the library has its own files. */
const char *beside(const char *suffix)
{
    static _Thread_local char path[PATH_MAX];
    const char *base = getenv("FAKE_NVML");
    Dl_info info;
    if (!base) base = dladdr((void *)beside, &info) ? info.dli_fname : "fake-nvml";
    snprintf(path, sizeof path, "%s%s", base, suffix);
    return path;
}

/* How many calls the fault of this line has seen, this one not counted. */
static int calls_before(const char *line)
{
    for (int i = 0; i < MAX_COUNTED; i++) {
        if (!counted[i].line[0]) snprintf(counted[i].line, sizeof counted[i].line, "%s", line);
        if (!strcmp(counted[i].line, line)) return counted[i].calls++;
    }
    return INT_MAX;
}

static int is_for(const char *pattern, const char *function, const char *which, int gpu)
{
    if (strcmp(pattern, "*") && strcmp(pattern, function)) return 0;
    return !strcmp(which, "*") || (gpu != NO_GPU && atoi(which) == gpu);
}

static int should_fail(const char *line, const char *function, int gpu, nvmlReturn_t *code)
{
    char pattern[80], which[16];
    int times = INT_MAX;
    if (sscanf(line, "fail %79s %d %15s %d", pattern, code, which, &times) < 3) return 0;
    if (!is_for(pattern, function, which, gpu)) return 0;
    return times == INT_MAX || calls_before(line) < times;
}

static int should_hang(const char *line, const char *function, int gpu)
{
    char pattern[80], which[16];
    return sscanf(line, "hang %79s %15s", pattern, which) == 2 && is_for(pattern, function, which, gpu);
}

nvmlReturn_t fault(const char *function, int gpu)
{
    int hanging;
    nvmlReturn_t result;
    do {
        char line[256];
        FILE *file = fopen(beside(".control"), "r");
        hanging = 0;
        result = SUCCESS;
        while (file && result == SUCCESS && fgets(line, sizeof line, file)) {
            nvmlReturn_t code;
            if (should_fail(line, function, gpu, &code)) result = code;
            if (should_hang(line, function, gpu)) hanging = 1;
        }
        if (file) fclose(file);
        if (hanging) usleep(2000);
    } while (hanging);
    return result;
}

void alias(int gpu, char *uuid)
{
    char line[256], other[96];
    int which, honest;
    FILE *file = fopen(beside(".control"), "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "alias %d %95s %d", &which, other, &honest) == 3 && which == gpu)
            if (calls_before(line) >= honest) strcpy(uuid, other);
    if (file) fclose(file);
}

long setting(int gpu, const char *name, long normal)
{
    char line[256], which[40];
    int index;
    long value;
    FILE *file = fopen(beside(".control"), "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "set %d %39s %ld", &index, which, &value) == 3 && index == gpu && !strcmp(which, name))
            normal = value;
    if (file) fclose(file);
    return normal;
}

int next_event(int *gpu, u64 *type, u64 *data, u32 *gi, u32 *ci)
{
    char line[256];
    int seen = 0, found = 0;
    FILE *file = fopen(beside(".control"), "r");
    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, "event %d %llu %llu %u %u", gpu, type, data, gi, ci) == 5) found = seen++ == delivered;
    if (file) fclose(file);
    delivered += found;
    return found;
}
