/* hpcext-batch ARGS...: what a suspendable job or a trainer runs in place of its batch script.
 *
 * Slurm gives a plugin room for one word: the argv of a job must not grow. So that word is this
 * program, which becomes COMMAND suspendable --lead LEAD -- SCRIPT ARGS... , or for a trainer
 * COMMAND trainer MIN:MAX -- SCRIPT ARGS... . If that cannot be started, it becomes the script. */
#include "batch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BEFORE = 6 }; /* at most: COMMAND suspendable --lead LEAD -- SCRIPT */

int main(int argc, char **argv)
{
	/* Not freed: the values are words of the argv below. unsetenv() moves pointers only. */
	char *command = getenv(BATCH_COMMAND), *script = getenv(BATCH_SCRIPT);
	bool trainer = getenv(BATCH_IS_TRAINER) != NULL;
	char *value = getenv(trainer ? BATCH_NODES : BATCH_LEAD);
	char **words = calloc((size_t)argc + WORDS_BEFORE, sizeof(*words));
	int count = 0;

	if (command == NULL || script == NULL || value == NULL || words == NULL) {
		fprintf(stderr, "hpcext: " BATCH_PROGRAM ": started by Slurm's plugin only; "
			BATCH_COMMAND ", " BATCH_SCRIPT " and %s must be set\n",
			trainer ? BATCH_NODES : BATCH_LEAD);
		goto fail;
	}
	unsetenv(BATCH_IS_TRAINER);
	unsetenv(BATCH_COMMAND);
	unsetenv(BATCH_SCRIPT);
	words[count++] = command;
	words[count++] = trainer ? "trainer" : "suspendable";
	if (!trainer)
		words[count++] = "--lead";
	words[count++] = value;
	words[count++] = "--";
	words[count++] = script;
	for (int i = 1; i < argc; i++)
		words[count++] = argv[i];
	execv(command, words);
	fprintf(stderr, "hpcext: the job cannot be %s: %s: %s; it runs as usual\n",
		trainer ? "a trainer" : "suspended", command, strerror(errno));
	argv[0] = script;
	execv(script, argv);
	fprintf(stderr, "hpcext: %s: %s\n", script, strerror(errno));
fail:
	free(words);
	return 127; /* as a shell says of what it cannot start */
}
