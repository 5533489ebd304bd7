/* A stand-in of libcuda.so.1: as much as takes a process off a GPU and puts it back, from outside.
 *
 * By the driver API's page on checkpoints (CUDA 12.8): a process goes from running to locked, to
 * checkpointed, to locked, to running, and by no other way. What is locked cannot call CUDA; here it
 * cannot do anything. The process itself needs no library: it counts as one that uses CUDA if it has
 * a file in $FAKE_GPU_PROCESSES, by its pid, which holds the bytes that it has on the GPU and, after
 * a space, its state. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS, INVALID_VALUE = 1, NOT_SUPPORTED = 801, ILLEGAL_STATE = 401 };
enum { RUNNING, LOCKED, CHECKPOINTED };

struct lock_args {
    unsigned int timeout_ms, reserved;
    unsigned long long more[7];
};

static char *place(int pid, char *path, size_t size)
{
    const char *folder = getenv("FAKE_GPU_PROCESSES");

    snprintf(path, size, "%s/%d", folder == NULL ? "/nonexistent" : folder, pid);
    return path;
}

static int state_of(int pid, unsigned long long *bytes, unsigned int *state)
{
    char path[4096];
    FILE *file = fopen(place(pid, path, sizeof path), "r");
    int read;

    if (file == NULL)
        return INVALID_VALUE;
    *state = RUNNING;
    read = fscanf(file, "%llu %u", bytes, state);
    fclose(file);
    return read < 1 ? INVALID_VALUE : SUCCESS;
}

static int change(int pid, unsigned int from, unsigned int to)
{
    char path[4096];
    unsigned long long bytes;
    unsigned int state;
    FILE *file;
    int code = state_of(pid, &bytes, &state);

    if (code != SUCCESS)
        return code;
    if (state != from)
        return ILLEGAL_STATE;
    if (from == RUNNING)
        kill(pid, SIGSTOP);
    file = fopen(place(pid, path, sizeof path), "w");
    if (file == NULL)
        return INVALID_VALUE;
    fprintf(file, "%llu %u", bytes, to);
    fclose(file);
    if (to == RUNNING)
        kill(pid, SIGCONT);
    return SUCCESS;
}

int cuInit(unsigned int flags)
{
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDriverGetVersion(int *version)
{
    *version = 12080;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == SUCCESS ? "CUDA_SUCCESS"
            : code == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE"
                                    : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

int cuCheckpointProcessGetState(int pid, unsigned int *state)
{
    unsigned long long bytes;

    return state_of(pid, &bytes, state);
}

int cuCheckpointProcessLock(int pid, struct lock_args *args)
{
    if (args != NULL && args->reserved != 0)
        return INVALID_VALUE;
    return change(pid, RUNNING, LOCKED);
}

int cuCheckpointProcessCheckpoint(int pid, void *args)
{
    return args == NULL ? change(pid, LOCKED, CHECKPOINTED) : NOT_SUPPORTED;
}

int cuCheckpointProcessRestore(int pid, void *args)
{
    return args == NULL ? change(pid, CHECKPOINTED, LOCKED) : NOT_SUPPORTED;
}

int cuCheckpointProcessUnlock(int pid, void *args)
{
    return args == NULL ? change(pid, LOCKED, RUNNING) : NOT_SUPPORTED;
}
