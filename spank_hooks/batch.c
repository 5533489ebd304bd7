/* hpcext-batch ARGS...: what a suspendable job or a trainer runs in place of its batch script.
 *
 * Slurm gives a plugin room for one word: the argv of a job must not grow. So that word is this
 * program. For a trainer it becomes COMMAND trainer MIN:MAX -- SCRIPT ARGS... . For a suspendable
 * job it runs COMMAND suspendable --prepare COMMAND --lead LEAD -- SCRIPT ARGS... , whose last line on stderr
 * is the script that it becomes then. Where that does not come about it becomes SCRIPT: a job is
 * not to suffer from whatever is wrong with hpcext. */
#include "batch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#ifndef PREPARE_S
#define PREPARE_S 60 /* a file system may hang */
#endif

enum {
	WORDS_BEFORE = 8, /* COMMAND suspendable --prepare COMMAND --lead LEAD -- SCRIPT */
	NULL_AT_END = 1,
	SAID_SIZE = 8192, /* paths have 4096 bytes at most */
	WHY_SIZE = 1024,
	SYSLOG_S = 2
};

struct job {
	char *command, *script, *value;
	bool trainer;
	int argc;
	char **argv;
};

/* The words of COMMAND; NULL without memory. They are not freed: this process becomes them. */
static char **words_of(const struct job *job)
{
	char **words = calloc((size_t)job->argc + WORDS_BEFORE + NULL_AT_END, sizeof(*words));
	int count = 0;

	if (words == NULL)
		return NULL;
	words[count++] = job->command;
	words[count++] = job->trainer ? "trainer" : "suspendable";
	if (!job->trainer) {
		words[count++] = "--prepare";
		words[count++] = job->command; /* which need not know how it was called */
		words[count++] = "--lead";
	}
	words[count++] = job->value;
	words[count++] = "--";
	words[count++] = job->script;
	for (int i = 1; i < job->argc; i++)
		words[count++] = job->argv[i];
	return words;
}

/* In a child, since syslog(3) may wait for ever. */
static void tell_syslog(const char *line)
{
	const char *id = getenv("SLURM_JOB_ID");
	pid_t pid = fork();

	if (pid == 0) {
		alarm(SYSLOG_S);
		openlog("hpcext", LOG_PID, LOG_USER);
		syslog(LOG_WARNING, "job %s: %s", id != NULL ? id : "?", line);
		_exit(0);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

/* Becomes the user's script; returns the exit status if that cannot be. */
static int run_plainly(const struct job *job, const char *why)
{
	char line[WHY_SIZE];

	snprintf(line, sizeof(line), "the job cannot be %s: %.900s; it runs as usual",
		 job->trainer ? "a trainer" : "suspended", why);
	fprintf(stderr, "hpcext: %s\n", line);
	tell_syslog(line);
	job->argv[0] = job->script;
	execv(job->script, job->argv);
	fprintf(stderr, "hpcext: %s: %s\n", job->script, strerror(errno));
	return 127; /* as a shell says of what it cannot start */
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* Reads what is said into a buffer that keeps the last of it; false if it does not end in time. */
static bool hear(int fd, char said[SAID_SIZE])
{
	long end_ms = now_ms() + PREPARE_S * 1000L;
	size_t held = 0;

	for (;;) {
		struct pollfd one = {.fd = fd, .events = POLLIN};
		long left_ms = end_ms - now_ms();
		ssize_t got;

		if (held == SAID_SIZE - 1) {
			memmove(said, said + SAID_SIZE / 2, held - SAID_SIZE / 2);
			held -= SAID_SIZE / 2;
		}
		if (left_ms <= 0)
			return false;
		if (poll(&one, 1, (int)left_ms) < 0) {
			if (errno == EINTR)
				continue;
			return false;
		}
		if (one.revents == 0)
			return false;
		got = read(fd, said + held, SAID_SIZE - 1 - held);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		held += (size_t)got;
	}
	while (held > 0 && said[held - 1] == '\n')
		held--;
	said[held] = '\0';
	return true;
}

/* Takes the last line off what was said; what is left of it stays in `said`. */
static char *last_line(char *said)
{
	char *line = strrchr(said, '\n');

	if (line == NULL)
		return said;
	*line = '\0';
	return line + 1;
}

/* One line as anybody may see it, without the control characters that a path may have. */
static void clean(char *line)
{
	for (char *c = line; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
}

/* In the child: errors, and the answer, go to the parent; signals are as they were. */
static void prepare(const struct job *job, int fd)
{
	char **words = words_of(job);

	if (words == NULL || dup2(fd, STDERR_FILENO) < 0)
		_exit(127);
	execv(job->command, words);
	fprintf(stderr, "%s: %s\n", job->command, strerror(errno));
	_exit(127);
}

/* The step of the script writes to the same files as this process. */
static void append(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0)
		fcntl(fd, F_SETFL, flags | O_APPEND);
}

/* Whether notices of the batch system mean something, which is to end a process without a handler. */
static void hear_of_leaving(bool hear)
{
	signal(SIGUSR1, hear ? SIG_DFL : SIG_IGN);
	signal(SIGUSR2, hear ? SIG_DFL : SIG_IGN);
}

/* Becomes what COMMAND has prepared, or the user's script. */
static int become_suspendable(const struct job *job)
{
	char said[SAID_SIZE], why[WHY_SIZE], *line;
	int ends[2], status = -1;
	bool heard;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return run_plainly(job, strerror(errno));
	/* The job may be told to leave meanwhile; a manager looks at the time when it begins. */
	hear_of_leaving(false);
	pid = fork();
	if (pid < 0) {
		hear_of_leaving(true);
		return run_plainly(job, strerror(errno));
	}
	if (pid == 0)
		prepare(job, ends[1]);
	close(ends[1]);
	heard = hear(ends[0], said);
	close(ends[0]);
	/* A shell traps no signal that it began with ignored. */
	hear_of_leaving(true);
	if (!heard) {
		/* Not waited for: what hangs in a file system does not end. */
		kill(pid, SIGKILL);
		snprintf(why, sizeof(why), "%.300s has not answered in %d s", job->command,
			 PREPARE_S);
		return run_plainly(job, why);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	line = last_line(said);
	if (status == 0 && line[0] == '/' && access(line, R_OK) == 0) {
		char *words[] = {"/bin/sh", line, NULL};

		if (line != said)
			fprintf(stderr, "%s\n", said);
		append(STDOUT_FILENO);
		append(STDERR_FILENO);
		execv(words[0], words);
		snprintf(why, sizeof(why), "/bin/sh: %s", strerror(errno));
		line = why;
	}
	if (line[0] == '\0') {
		snprintf(why, sizeof(why), "%.300s ended without a word", job->command);
		line = why;
	}
	clean(line);
	return run_plainly(job, line);
}

static int become_trainer(const struct job *job)
{
	char why[WHY_SIZE], **words = words_of(job);

	if (words != NULL)
		execv(job->command, words);
	snprintf(why, sizeof(why), "%.300s: %s", job->command, strerror(errno));
	free(words);
	return run_plainly(job, why);
}

int main(int argc, char **argv)
{
	/* Not copied: unsetenv() moves pointers only. */
	struct job job = {
		.command = getenv(BATCH_COMMAND),
		.script = getenv(BATCH_SCRIPT),
		.trainer = getenv(BATCH_IS_TRAINER) != NULL,
		.argc = argc,
		.argv = argv,
	};

	job.value = getenv(job.trainer ? BATCH_NODES : BATCH_LEAD);
	if (job.command == NULL || job.script == NULL || job.value == NULL) {
		fprintf(stderr, "hpcext: " BATCH_PROGRAM ": started by Slurm's plugin only; "
			BATCH_COMMAND ", " BATCH_SCRIPT " and %s must be set\n",
			job.trainer ? BATCH_NODES : BATCH_LEAD);
		return 127;
	}
	unsetenv(BATCH_IS_TRAINER);
	unsetenv(BATCH_COMMAND);
	unsetenv(BATCH_SCRIPT);
	return job.trainer ? become_trainer(&job) : become_suspendable(&job);
}
