/* The plugin's options without Slurm: the very callbacks that sbatch and slurmstepd call.
 *
 * Each line of standard input asks for one thing; each is answered by the messages there were and a
 * line "= STATUS".
 *
 *     args WORD...               arguments in plugstack.conf
 *     local OPTION [VALUE]       the option on a command line
 *     remote OPTION [VALUE]      the option in slurmstepd
 *     inherit OPTION VALUE       the option in srun, by the job that it runs in
 *     post                       what sbatch, srun and salloc do after all options; once
 *     fit [SCALING]              the options all together
 *     values                     prints what was given, and forgets it
 *
 * WORD, VALUE and SCALING are in hexadecimal, "-" an empty one. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "local.h"
#include "options.h"

enum { LINE_SIZE = 1 << 21, WORDS = 16, WHY_SIZE = 512 };

static struct spank_option *registered[OPTIONS];
static int count;

/* What Slurm would do. */

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
	(void)sp;
	registered[count++ % OPTIONS] = option;
	return ESPANK_SUCCESS;
}

const char *spank_strerror(spank_err_t err)
{
	(void)err;
	return "an error";
}

void slurm_info(const char *format, ...)
{
	(void)format;
}

void slurm_error(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	putchar('\n');
}

/* Each in memory of its own size: a read past the end is seen. */
static char *unhexed(const char *text)
{
	size_t len = strcmp(text, "-") == 0 ? 0 : strlen(text) / 2;
	char *bytes = malloc(len + 1);

	if (bytes == NULL)
		abort();
	for (size_t i = 0; i < len; i++) {
		unsigned int byte;

		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			abort();
		bytes[i] = (char)byte;
	}
	bytes[len] = '\0';
	return bytes;
}

static int call(const char *name, const char *value, int remote)
{
	for (int i = 0; i < OPTIONS; i++)
		if (strcmp(registered[i]->name, name) == 0)
			return registered[i]->cb(registered[i]->val, value, remote);
	abort();
}

/* As slurmctld has it in the environment of a batch script, which each of its srun reads first. */
static int inherit(const char *name, const char *value)
{
	for (int i = 0; i < OPTIONS; i++)
		if (strcmp(registered[i]->name, name) == 0)
			setenv(option_sent_as(registered[i]->val), value, 1);
	return call(name, value, 0);
}

static int post(void)
{
	local_post_opt();
	return 0;
}

static int check_args(int ac, char **av)
{
	char why[WHY_SIZE];
	struct args args;
	int rc = args_parse(&args, ac, av, why, sizeof(why));

	printf("%s\n", rc != 0 ? why : args.command != NULL ? args.command : "");
	return rc;
}

static int check_fit(const char *scaling)
{
	char why[WHY_SIZE];
	bool fit = options_fit(scaling, why, sizeof(why));

	if (!fit)
		printf("hpcext: %s\n", why);
	return fit ? 0 : -1;
}

static int check_belong(void)
{
	char why[WHY_SIZE];
	bool belong = options_belong(why, sizeof(why));

	if (!belong)
		printf("hpcext: %s\n", why);
	return belong ? 0 : -1;
}

static int print_values(void)
{
	for (enum option_id id = 0; id < OPTIONS; id++)
		if (option_value(id) != NULL)
			printf("%s=%s\n", option_variable(id), option_value(id));
	options_register(NULL, NULL);
	return 0;
}

static int answer(int ac, char **av)
{
	if (strcmp(av[0], "args") == 0)
		return check_args(ac - 1, av + 1);
	if (strcmp(av[0], "fit") == 0)
		return check_fit(ac > 1 ? av[1] : NULL);
	if (strcmp(av[0], "belong") == 0)
		return check_belong();
	if (strcmp(av[0], "values") == 0)
		return print_values();
	if (strcmp(av[0], "post") == 0)
		return post();
	if (strcmp(av[0], "inherit") == 0)
		return inherit(av[1], av[2]);
	return call(av[1], ac > 2 ? av[2] : NULL, strcmp(av[0], "remote") == 0);
}

int main(void)
{
	char *line = malloc(LINE_SIZE);

	options_register(NULL, NULL);
	while (line != NULL && fgets(line, LINE_SIZE, stdin) != NULL) {
		char *words[WORDS];
		int n = 0;

		for (char *w = strtok(line, " \n"); w != NULL && n < WORDS; w = strtok(NULL, " \n")) {
			/* The first word, and the name of an option, are as they are. */
			bool plain = n == 0 || (n == 1 && strncmp(w, "hpcext-", 7) == 0);

			words[n++] = plain ? strdup(w) : unhexed(w);
		}
		printf("= %d\n", answer(n, words));
		fflush(stdout);
		while (n > 0)
			free(words[--n]);
	}
	free(line);
	return 0;
}
