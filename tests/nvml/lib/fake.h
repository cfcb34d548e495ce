/*
 * A fake NVML for tests: nvidia-ml-py runs against it as it does against NVIDIA's library.
 * Layouts and names of structs, functions and constants are NVML's, as nvidia-ml-py (pynvml.py) declares them.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

typedef int nvmlReturn_t;
typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { MAX_GPUS = 64, MAX_LINKS = 36, MAX_PROFILES = 20, MAX_PLACEMENTS = 16, MAX_INSTANCES = 32 };
enum { NO_GPU = -1 };

/* What a handle points to begins with one of these, so that a wrong handle is noticed. */
enum kind { KIND_GPU = 0x47505500, KIND_GI, KIND_CI };

struct gpu;

struct placement { u32 start, size; };

struct profile {
    u32 index, id, slices, max, sms, copy, decoders, encoders, jpeg, ofa;
    u64 mib;
    char name[96];
    u32 placements;
    struct placement placement[MAX_PLACEMENTS];
};

struct gi {
    enum kind kind;
    int used;
    struct gpu *gpu;
    struct profile *profile;
    u32 id;
    struct placement placement;
};

struct ci { /* also the MIG device */
    enum kind kind;
    int used;
    struct gi *gi;
    u32 id, slices, start;
    char uuid[96];
};

struct link { int active; u32 type; char bus[32]; };

struct gpu {
    enum kind kind;
    int index;
    char uuid[96], name[96], bus[32];
    int minor; /* -1: this board has none */
    u32 device_id, brand, architecture, addressing, compute_mode;
    int major_cc, minor_cc;
    u64 memory; /* bytes; 0: this board can't tell */
    u32 links;
    struct link link[MAX_LINKS];
    int fabric; /* state; -1: no such query */
    u32 clique;
    unsigned char cluster[16];
    int mig; /* capable */
    u32 mig_mode, mig_pending, mig_at_once;
    u32 profiles;
    struct profile profile[MAX_PROFILES];
    struct gi gi[MAX_INSTANCES];
    struct ci ci[MAX_INSTANCES];
};

struct node {
    int initialized;
    char driver[80];
    int cuda;
    int gpus;
    struct gpu gpu[MAX_GPUS];
};

extern struct node node;

/* state.c */
nvmlReturn_t load_config(void);
struct gpu *as_gpu(void *handle);
struct gi *add_gi(struct gpu *gpu, struct profile *profile, struct placement placement, u32 id);
struct ci *add_ci(struct gi *gi, u32 id, u32 start, u32 slices, const char *uuid);
struct profile *profile_by(struct gpu *gpu, u32 number, int by_id);

/* shared.c: MIG as several processes see it, if there is a file for it; else it belongs to this process */
struct change { int file; };
void refresh(void);
struct change begin_change(void);
void end_change(struct change *change);

/* Until the function returns, no other process changes anything. */
#define CHANGE __attribute__((cleanup(end_change))) struct change change_ = begin_change()

/* control.c: faults that tests switch on while the library runs */
nvmlReturn_t fault(const char *function, int gpu);
long setting(int gpu, const char *name, long normal);
void alias(int gpu, char *uuid);
int next_event(int *gpu, u64 *type, u64 *data, u32 *gi, u32 *ci);
const char *beside(const char *suffix);

#define API __attribute__((visibility("default")))

/* Every function begins with one of these: is NVML initialised, is the handle good, does a fault apply? */
#define BEGIN(gpu_index)                                        \
    do {                                                        \
        if (!node.initialized) return UNINITIALIZED;            \
        nvmlReturn_t fault_ = fault(__func__, gpu_index);       \
        if (fault_ != SUCCESS) return fault_;                   \
    } while (0)

#define BEGIN_GPU(handle)                                       \
    struct gpu *gpu = as_gpu(handle);                           \
    if (node.initialized && !gpu) return INVALID_ARGUMENT;      \
    BEGIN(gpu ? gpu->index : NO_GPU)

#endif
