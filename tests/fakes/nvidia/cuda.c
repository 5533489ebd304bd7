/* A stand-in of libcuda.so.1: memory on GPUs, and the driver's checkpoints of it.
 *
 * By NVIDIA's documentation of the driver's interface ("CUDA Checkpointing", "Memory Management") and
 * the README of its cuda-checkpoint. It keeps its account in the directory of the library:
 *
 *     gpus          a line for each GPU: UUID (32 digits), bytes of memory, model
 *     version       as of cuDriverGetVersion
 *     dev/          nvidiactl, nvidia0 and so on, which processes that use a GPU have open
 *     memory/       GPU.PID.NUMBER: an allocation, which is what it holds
 *     process/      PID: the state and the driver's thread of a process that uses a GPU
 *     request/      PID: what that thread is to do; answer/: what came of it; asked: all of it
 *     fault         what is to go wrong, as below
 *
 * In a process that uses a GPU a thread of the driver does what others ask for, so nothing happens
 * while it is stopped. Faults, as they are documented or reported:
 *
 *     busy          work on the GPU does not end: the lock's time runs out, and the process runs on
 *     denied        CUDA_ERROR_NOT_PERMITTED
 *     failed        a checkpoint of managed memory: CUDA_ERROR_NOT_SUPPORTED, and the state is FAILED
 *     dies          the process dies in its checkpoint
 *     hangs         neither a checkpoint nor a restore ends
 *     keeps         it says CHECKPOINTED, and the memory is on the GPU as before
 *     full          a restore finds no memory, and the process is stuck: later ones give
 *                   CUDA_ERROR_OPERATING_SYSTEM, an unlock CUDA_ERROR_ILLEGAL_STATE
 *                   (https://github.com/NVIDIA/cuda-checkpoint/issues/44)
 */

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    OPERATING_SYSTEM = 304,
    ILLEGAL_STATE = 401,
    NOT_READY = 600,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801
};
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { MOST_GPUS = 8, MOST_ALLOCATIONS = 64, PATH = 4096 };

struct gpu {
    char uuid[33];
    unsigned long long bytes;
};

struct allocation {
    char gpu[33]; /* its UUID */
    size_t size;
    char *there; /* on the GPU */
    char *here;  /* in host memory, while it is checkpointed */
};

static struct allocation allocations[MOST_ALLOCATIONS];
static int files[MOST_GPUS + 1];
static int initialized, is_open, state, stuck;
static char current[33];
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static sem_t serves;

/* The account. */

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

static int read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length;

    if (fd < 0)
        return 0;
    length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

static void write_text(const char *path, const char *text)
{
    char draft[PATH + 8];
    int fd;

    snprintf(draft, sizeof draft, "%s.new", path);
    fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        abort();
    close(fd);
    rename(draft, path);
}

static int fault(const char *name)
{
    char path[PATH], text[64];

    if (!read_text(place(path, "fault"), text, sizeof text))
        return 0;
    text[strcspn(text, "\n")] = 0;
    return strcmp(text, name) == 0;
}

static int known(struct gpu *gpus)
{
    char path[PATH], line[256];
    FILE *file = fopen(place(path, "gpus"), "re");
    int count = 0;

    while (file != NULL && count < MOST_GPUS && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%32s %llu", gpus[count].uuid, &gpus[count].bytes) == 2)
            count++;
    if (file != NULL)
        fclose(file);
    return count;
}

static int lives(int pid)
{
    char path[64], text[512];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    return read_text(path, text, sizeof text) && strstr(text, ") Z ") == NULL;
}

/* The bytes on a GPU of processes that live; the driver frees what others had. */
static unsigned long long used(int gpu)
{
    char path[PATH];
    DIR *directory = opendir(place(path, "memory"));
    unsigned long long sum = 0;
    struct dirent *entry;
    struct stat facts;
    int on, pid;

    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (sscanf(entry->d_name, "%d.%d.", &on, &pid) == 2 && on == gpu && lives(pid) &&
            stat(place(path, "memory/%s", entry->d_name), &facts) == 0)
            sum += (unsigned long long)facts.st_size;
    if (directory != NULL)
        closedir(directory);
    return sum;
}

static void pause_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};

    while (nanosleep(&left, &left) != 0)
        ;
}

/* In a process that uses a GPU. */

static void note(void)
{
    char path[PATH], text[64];

    snprintf(text, sizeof text, "%d %ld", state, syscall(SYS_gettid));
    write_text(place(path, "process/%d", getpid()), text);
}

static void open_devices(void)
{
    struct gpu gpus[MOST_GPUS];
    char path[PATH];
    int count = known(gpus);

    if (is_open)
        return;
    is_open = 1;
    files[count] = open(place(path, "dev/nvidiactl"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; i < count; i++)
        files[i] = open(place(path, "dev/nvidia%d", i), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void close_devices(void)
{
    struct gpu gpus[MOST_GPUS];

    for (int i = known(gpus); i >= 0; i--)
        close(files[i]);
    is_open = 0;
}

static int number(const char *uuid)
{
    struct gpu gpus[MOST_GPUS];
    int i = known(gpus) - 1;

    while (i >= 0 && strcmp(gpus[i].uuid, uuid) != 0)
        i--;
    return i;
}

static const char *stored(char *path, const struct allocation *each)
{
    int gpu = number(each->gpu), own = (int)(each - allocations);

    return place(path, "memory/%d.%d.%d", gpu, getpid(), own);
}

static int put(struct allocation *each)
{
    struct gpu gpus[MOST_GPUS];
    char path[PATH];
    int fd, gpu = number(each->gpu);

    if (gpu < 0)
        return INVALID_VALUE;
    known(gpus);
    if (used(gpu) + each->size > gpus[gpu].bytes)
        return OUT_OF_MEMORY;
    stored(path, each);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)each->size) != 0)
        return OUT_OF_MEMORY;
    each->there = mmap(NULL, each->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return each->there == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

static void drop(struct allocation *each)
{
    char path[PATH];

    munmap(each->there, each->size);
    each->there = NULL;
    unlink(stored(path, each));
}

static int lock(long ms)
{
    if (state != RUNNING)
        return ILLEGAL_STATE;
    if (fault("busy")) {
        pause_ms(ms);
        return NOT_READY;
    }
    pthread_mutex_lock(&gate);
    state = LOCKED;
    return SUCCESS;
}

static int checkpoint(void)
{
    if (state != LOCKED)
        return ILLEGAL_STATE;
    if (fault("failed")) {
        state = FAILED;
        return NOT_SUPPORTED;
    }
    if (fault("dies"))
        kill(getpid(), SIGKILL);
    while (fault("hangs"))
        pause_ms(10);
    state = CHECKPOINTED;
    if (fault("keeps"))
        return SUCCESS;
    for (int i = 0; i < MOST_ALLOCATIONS; i++) {
        struct allocation *each = &allocations[i];

        if (each->size == 0)
            continue;
        each->here = malloc(each->size);
        memcpy(each->here, each->there, each->size);
        drop(each);
    }
    close_devices();
    return SUCCESS;
}

/* Have another GPU take the place of one: "OLD NEW " for each of the machine; all stay without. */
static int replace(char *gpu, const char *pairs)
{
    char old[33], other[33];
    int taken = 0;

    if (*pairs == 0)
        return SUCCESS;
    for (; sscanf(pairs, "%32s %32s %n", old, other, &taken) == 2; pairs += taken)
        if (strcmp(old, gpu) == 0) {
            strcpy(gpu, other);
            return SUCCESS;
        }
    return INVALID_VALUE;
}

static int restore(const char *pairs)
{
    if (stuck)
        return OPERATING_SYSTEM;
    if (state != CHECKPOINTED)
        return ILLEGAL_STATE;
    while (fault("hangs"))
        pause_ms(10);
    for (int i = 0; i < MOST_ALLOCATIONS; i++) {
        struct allocation *each = &allocations[i];

        if (each->here == NULL)
            continue;
        if (replace(each->gpu, pairs) != SUCCESS || number(each->gpu) < 0)
            return INVALID_VALUE;
        if (fault("full") || put(each) != SUCCESS) {
            stuck = 1;
            return OUT_OF_MEMORY;
        }
        memcpy(each->there, each->here, each->size);
        free(each->here);
        each->here = NULL;
    }
    open_devices();
    state = LOCKED;
    return SUCCESS;
}

static int unlock(void)
{
    if (state != LOCKED)
        return ILLEGAL_STATE;
    state = RUNNING;
    pthread_mutex_unlock(&gate);
    return SUCCESS;
}

static void record(const char *what)
{
    char path[PATH];
    FILE *file = fopen(place(path, "asked"), "ae");

    if (file != NULL) {
        fprintf(file, "%s\n", what);
        fclose(file);
    }
}

static void *serve(void *unused)
{
    char path[PATH], text[2048], answer[64], what[16], token[32];

    (void)unused;
    note();
    sem_post(&serves);
    for (;; pause_ms(1)) {
        int code = INVALID_VALUE, taken = 0;
        long number;

        if (!read_text(place(path, "request/%d", getpid()), text, sizeof text))
            continue;
        unlink(path);
        if (sscanf(text, "%31s %15s %ld %n", token, what, &number, &taken) < 3)
            continue;
        record(what);
        if (strcmp(what, "state") == 0)
            code = SUCCESS;
        else if (strcmp(what, "lock") == 0)
            code = lock(number);
        else if (strcmp(what, "checkpoint") == 0)
            code = checkpoint();
        else if (strcmp(what, "restore") == 0)
            code = restore(text + taken);
        else if (strcmp(what, "unlock") == 0)
            code = unlock();
        note();
        snprintf(answer, sizeof answer, "%s %d %d", token, code, state);
        write_text(place(path, "answer/%d", getpid()), answer);
    }
    return NULL;
}

int cuInit(unsigned int flags)
{
    struct gpu gpus[MOST_GPUS];

    if (flags != 0)
        return INVALID_VALUE;
    if (known(gpus) == 0)
        return NO_DEVICE;
    initialized = 1;
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    char path[PATH], text[64];

    *version = read_text(place(path, "version"), text, sizeof text) ? atoi(text) : 13000;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    struct gpu gpus[MOST_GPUS];

    if (!initialized)
        return NOT_INITIALIZED;
    *device = ordinal;
    return ordinal < known(gpus) ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    struct gpu gpus[MOST_GPUS];
    pthread_t thread;

    if (!initialized || device >= known(gpus))
        return initialized ? INVALID_VALUE : NOT_INITIALIZED;
    open_devices();
    strcpy(current, gpus[device].uuid);
    *context = &allocations;
    if (sem_init(&serves, 0, 0) != 0 || pthread_create(&thread, NULL, serve, NULL) != 0)
        return OUT_OF_MEMORY;
    sem_wait(&serves);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    return context == &allocations ? SUCCESS : INVALID_VALUE;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
    int code = OUT_OF_MEMORY;

    pthread_mutex_lock(&gate);
    for (int i = 0; i < MOST_ALLOCATIONS; i++) {
        if (allocations[i].size != 0)
            continue;
        allocations[i].size = size;
        strcpy(allocations[i].gpu, current);
        code = put(&allocations[i]);
        *pointer = (unsigned long long)(i + 1) << 40;
        break;
    }
    pthread_mutex_unlock(&gate);
    return code;
}

static int copy(unsigned long long pointer, void *to, const void *from, size_t size)
{
    int i = (int)(pointer >> 40) - 1, code = INVALID_VALUE;

    pthread_mutex_lock(&gate);
    if (i >= 0 && i < MOST_ALLOCATIONS && size <= allocations[i].size) {
        char *there = allocations[i].there;

        memcpy(to != NULL ? to : there, from != NULL ? from : there, size);
        code = SUCCESS;
    }
    pthread_mutex_unlock(&gate);
    return code;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
    return copy(to, NULL, from, size);
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{
    return copy(from, to, NULL, size);
}

int cuGetErrorName(int code, const char **name)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
        {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
        {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return SUCCESS;
        }
    *name = NULL;
    return INVALID_VALUE;
}

/* In the process that asks. */

static int is_zero(const void *args, size_t from)
{
    const char *bytes = args;

    for (size_t i = from; args != NULL && i < 64; i++)
        if (bytes[i] != 0)
            return 0;
    return 1;
}

/* Have the driver's thread in a process do something, which waits while that thread is stopped. */
static int ask(int pid, const char *what, long number, const char *more, int *found)
{
    char path[PATH], text[2048], token[32], said[32];
    struct timespec now;
    int code;

    if (!read_text(place(path, "process/%d", pid), text, sizeof text) || !lives(pid))
        return INVALID_VALUE;
    if (fault("denied"))
        return NOT_PERMITTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(token, sizeof token, "%ld.%ld", (long)now.tv_sec, now.tv_nsec);
    snprintf(text, sizeof text, "%s %s %ld %s", token, what, number, more);
    write_text(place(path, "request/%d", pid), text);
    for (;; pause_ms(1)) {
        if (read_text(place(path, "answer/%d", pid), text, sizeof text) &&
            sscanf(text, "%31s %d %d", said, &code, found) == 3 && strcmp(said, token) == 0)
            return code;
        if (!lives(pid))
            return OPERATING_SYSTEM;
    }
}

int cuCheckpointProcessGetState(int pid, int *found)
{
    return ask(pid, "state", 0, "", found);
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
    char path[PATH], text[64];
    int now;

    if (!read_text(place(path, "process/%d", pid), text, sizeof text))
        return INVALID_VALUE;
    return sscanf(text, "%d %d", &now, thread) == 2 ? SUCCESS : INVALID_VALUE;
}

int cuCheckpointProcessLock(int pid, const unsigned int *args)
{
    int now;

    return is_zero(args, 4) ? ask(pid, "lock", args == NULL ? 0 : args[0], "", &now) : INVALID_VALUE;
}

int cuCheckpointProcessCheckpoint(int pid, const void *args)
{
    int now;

    return is_zero(args, 0) ? ask(pid, "checkpoint", 0, "", &now) : INVALID_VALUE;
}

struct pair {
    unsigned char old[16], other[16];
};

struct restore_args {
    const struct pair *pairs;
    unsigned int count;
    char reserved[52];
};

int cuCheckpointProcessRestore(int pid, const struct restore_args *args)
{
    struct gpu gpus[MOST_GPUS];
    char text[MOST_GPUS * 66 + 1] = "", *end = text;
    int now, version;

    if (!initialized)
        return NOT_INITIALIZED;
    cuDriverGetVersion(&version);
    if (!is_zero(args, version < 13000 ? 0 : 12) || (args != NULL && args->count > MOST_GPUS))
        return INVALID_VALUE;
    if (args != NULL && args->count != 0 && (int)args->count != known(gpus))
        return INVALID_VALUE;
    for (unsigned int i = 0; args != NULL && i < args->count; i++) {
        for (int byte = 0; byte < 16; byte++)
            end += sprintf(end, "%02x", args->pairs[i].old[byte]);
        *end++ = ' ';
        for (int byte = 0; byte < 16; byte++)
            end += sprintf(end, "%02x", args->pairs[i].other[byte]);
        *end++ = ' ';
        *end = 0;
    }
    return ask(pid, "restore", 0, text, &now);
}

int cuCheckpointProcessUnlock(int pid, const void *args)
{
    int now;

    return is_zero(args, 0) ? ask(pid, "unlock", 0, "", &now) : INVALID_VALUE;
}
