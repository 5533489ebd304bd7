/* A library to be preloaded: io_uring is as on a kernel without it, since no checkpoint has it.
 * Programs that use it by way of libc's syscall(), as libuv does, then do without. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 6 };

typedef long function(long, ...);

static function *next_one;

__attribute__((constructor)) static void find(void)
{
    /* ISO C has no cast from an object to a function. */
    *(void **)&next_one = dlsym(RTLD_NEXT, "syscall");
}

long syscall(long number, ...)
{
    long given[MOST_ARGUMENTS];
    va_list list;

    if (number == SYS_io_uring_setup) {
        errno = ENOSYS;
        return -1;
    }
    if (next_one == NULL)
        find();
    /* How many there are only the kernel knows. */
    va_start(list, number);
    for (int i = 0; i < MOST_ARGUMENTS; i++)
        given[i] = va_arg(list, long);
    va_end(list);
    return next_one(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
