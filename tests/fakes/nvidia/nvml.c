/* A stand-in of libnvidia-ml.so.1, by NVML's header: as much as is asked.
 *
 * Two GPUs, of which $FAKE_NVML says what is wrong with the second one, on the node $FAKE_NVML_ON if
 * there is such a variable. Without it there is no driver, unless the account of the stand-in of
 * libcuda.so.1 (cuda.c) is beside the library: then the GPUs are those, and who has memory on them
 * is told. Files `mig` and `mps` beside it say that they are used so. */

#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, NOT_LOADED = 9 };
enum { LOST = 15, RESET = 16 };
enum { MOST_GPUS = 8, PATH = 4096 };

struct memory {
    unsigned long long total, free, used;
};

struct process {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
};

struct field_value {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type, result;
    unsigned long long value;
};

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static int gpus[MOST_GPUS];
#define first gpus[0]
#define second gpus[1]

static const char *place(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

static const char *place(char *path, const char *format, ...)
{
    Dl_info info;
    va_list values;
    char *end;

    dladdr((void *)place, &info);
    snprintf(path, PATH, "%s", info.dli_fname);
    end = strrchr(path, '/') + 1;
    va_start(values, format);
    vsnprintf(end, (size_t)(PATH - (end - path)), format, values);
    va_end(values);
    return path;
}

static int is_there(const char *name)
{
    char path[PATH];

    return access(place(path, "%s", name), F_OK) == 0;
}

/* A GPU of the account, and how many there are. */
static int known(int index, char *uuid, unsigned long long *bytes, char *model)
{
    char path[PATH], line[256];
    FILE *file = fopen(place(path, "gpus"), "re");
    int count = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (count++ == index)
            sscanf(line, "%32s %llu %63[^\n]", uuid, bytes, model);
    if (file != NULL)
        fclose(file);
    return count;
}

static int is(const void *gpu, const char *what)
{
    const char *only = getenv("FAKE_NVML_ON"), *here = getenv("SLURMD_NODENAME");

    if (getenv("FAKE_NVML") == NULL)
        return 0;
    if (only != NULL && (here == NULL || strcmp(only, here) != 0))
        return 0;
    return gpu == &second && strcmp(getenv("FAKE_NVML"), what) == 0;
}

int nvmlInit_v2(void)
{
    if (getenv("FAKE_NVML") == NULL)
        return is_there("gpus") ? SUCCESS : NOT_LOADED;
    if (strcmp(getenv("FAKE_NVML"), "hangs") == 0)
        sleep(3600);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    char uuid[33], model[64];
    unsigned long long bytes;

    *count = is_there("gpus") ? (unsigned int)known(-1, uuid, &bytes, model) : 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu)
{
    unsigned int count;

    nvmlDeviceGetCount_v2(&count);
    if (index >= count || index >= MOST_GPUS)
        return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    if (is(*gpu, "is lost"))
        return LOST;
    return is(*gpu, "needs a reset") ? RESET : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu)
{
    if (strncmp(uuid, "GPU-000", 7) != 0)
        return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2((unsigned int)atoi(uuid + 7), gpu);
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *count)
{
    if (type != 1 || counter != 0)
        return INVALID_ARGUMENT;
    if (is(gpu, "has no ECC"))
        return NOT_SUPPORTED;
    *count = is(gpu, "memory errors") ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *gpu, unsigned int *pending)
{
    *pending = (unsigned int)is(gpu, "pages wait");
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *gpu, unsigned int *corrected, unsigned int *uncorrected,
                              unsigned int *pending, unsigned int *failed)
{
    *corrected = *uncorrected = 1;
    *pending = (unsigned int)is(gpu, "rows wait");
    *failed = (unsigned int)is(gpu, "rows fail");
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *gpu, int count, struct field_value *values)
{
    if (count != 1 || values->field != 230)
        return INVALID_ARGUMENT;
    values->result = is(gpu, "an old driver") ? NOT_SUPPORTED : SUCCESS;
    values->value = is(gpu, "reboot") ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons)
{
    *reasons = is(gpu, "hot") ? 0x48 : 0x1;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu == &second ? 0x3b : 0x3a;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

/* Of the account. */

int nvmlDeviceGetUUID(int *gpu, char *text, unsigned int size)
{
    char uuid[33] = "", model[64];
    unsigned long long bytes;

    known((int)(gpu - gpus), uuid, &bytes, model);
    snprintf(text, size, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", uuid, uuid + 8, uuid + 12, uuid + 16,
             uuid + 20);
    return SUCCESS;
}

int nvmlDeviceGetName(int *gpu, char *text, unsigned int size)
{
    char uuid[33], model[64] = "";
    unsigned long long bytes;

    known((int)(gpu - gpus), uuid, &bytes, model);
    snprintf(text, size, "%s", model);
    return SUCCESS;
}

static int lives(int pid)
{
    char path[64], text[512] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(text, sizeof text, file) == NULL)
        text[0] = 0;
    fclose(file);
    return strstr(text, ") Z ") == NULL;
}

/* Those with memory on a GPU; up to a number of them. */
static unsigned int found(int gpu, struct process *processes, unsigned int most)
{
    char path[PATH];
    DIR *directory = opendir(place(path, "memory"));
    unsigned int count = 0;
    struct dirent *entry;
    struct stat facts;
    int on, pid;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (sscanf(entry->d_name, "%d.%d.", &on, &pid) != 2 || on != gpu || !lives(pid) ||
            stat(place(path, "memory/%s", entry->d_name), &facts) != 0)
            continue;
        unsigned int i = 0;

        while (i < count && i < most && processes[i].pid != (unsigned int)pid)
            i++;
        if (i >= count && count++ < most)
            processes[i] = (struct process){.pid = (unsigned int)pid};
        if (i < most)
            processes[i].bytes += (unsigned long long)facts.st_size;
    }
    if (directory != NULL)
        closedir(directory);
    return count;
}

int nvmlDeviceGetMemoryInfo(int *gpu, struct memory *memory)
{
    struct process processes[64];
    char uuid[33], model[64];
    unsigned int count = found((int)(gpu - gpus), processes, 64);

    known((int)(gpu - gpus), uuid, &memory->total, model);
    memory->used = 0;
    for (unsigned int i = 0; i < count && i < 64; i++)
        memory->used += processes[i].bytes;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(int *gpu, unsigned int *count, struct process *told)
{
    unsigned int room = *count;

    *count = is_there("mps") ? 0 : found((int)(gpu - gpus), told, room);
    return *count > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(int *gpu, unsigned int *count, struct process *told)
{
    unsigned int room = *count;

    *count = is_there("mps") ? found((int)(gpu - gpus), told, room) : 0;
    return *count > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetMigMode(int *gpu, unsigned int *current, unsigned int *pending)
{
    (void)gpu;
    *current = *pending = (unsigned int)is_there("mig");
    return SUCCESS;
}
