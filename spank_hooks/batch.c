/* hpcext-batch ARGS...: what a suspendable job runs in place of its batch script.
 *
 * Slurm gives a plugin room for one word: the argv of a job must not grow. So that word is this
 * program, which becomes COMMAND suspendable --lead LEAD -- SCRIPT ARGS... . If that cannot be
 * started, it becomes the script. */
#include "batch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BEFORE = 6 }; /* COMMAND suspendable --lead LEAD -- SCRIPT */

int main(int argc, char **argv)
{
	/* Not freed: the values are words of the argv below. unsetenv() moves pointers only. */
	char *command = getenv(BATCH_COMMAND), *script = getenv(BATCH_SCRIPT);
	char *lead = getenv(BATCH_LEAD);
	char **words = calloc((size_t)argc + WORDS_BEFORE, sizeof(*words));

	if (command == NULL || script == NULL || lead == NULL || words == NULL) {
		fputs("hpcext: " BATCH_PROGRAM ": started by Slurm's plugin only; " BATCH_COMMAND
		      ", " BATCH_SCRIPT " and " BATCH_LEAD " must be set\n", stderr);
		goto fail;
	}
	unsetenv(BATCH_COMMAND);
	unsetenv(BATCH_SCRIPT);
	words[0] = command;
	words[1] = "suspendable";
	words[2] = "--lead";
	words[3] = lead;
	words[4] = "--";
	words[5] = script;
	for (int i = 1; i < argc; i++)
		words[WORDS_BEFORE - 1 + i] = argv[i];
	execv(command, words);
	fprintf(stderr, "hpcext: the job cannot be suspended: %s: %s; it runs as usual\n", command,
		strerror(errno));
	argv[0] = script;
	execv(script, argv);
	fprintf(stderr, "hpcext: %s: %s\n", script, strerror(errno));
fail:
	free(words);
	return 127; /* as a shell says of what it cannot start */
}
