/* A stand-in of libnvidia-ml.so.1: as much as is asked once an attempt has failed.
 *
 * By NVML's header: two GPUs, of which $FAKE_NVML says what is wrong with the second one, on the node
 * $FAKE_NVML_ON if there is such a variable. Without it there is no driver. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_LOADED = 9, LOST = 15, RESET = 16 };

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

static int second;

static int is(const void *gpu, const char *what)
{
    const char *only = getenv("FAKE_NVML_ON"), *here = getenv("SLURMD_NODENAME");

    if (only != NULL && (here == NULL || strcmp(only, here) != 0))
        return 0;
    return gpu == &second && strcmp(getenv("FAKE_NVML"), what) == 0;
}

int nvmlInit_v2(void)
{
    if (getenv("FAKE_NVML") == NULL)
        return NOT_LOADED;
    if (strcmp(getenv("FAKE_NVML"), "hangs") == 0)
        sleep(3600);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 2;
    return SUCCESS;
}

static int first;

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu)
{
    if (index > 1)
        return INVALID_ARGUMENT;
    *gpu = index == 0 ? (void *)&first : (void *)&second;
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
