#include "args.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "values.h"

#define COMMAND "command="

int args_parse(struct args *args, int ac, char **av, char *why, size_t size)
{
	char shown[SHOWN_SIZE];

	args->command = NULL;
	for (int i = 0; i < ac; i++) {
		const char *path = av[i] + strlen(COMMAND);

		if (strncmp(av[i], COMMAND, strlen(COMMAND)) != 0) {
			snprintf(why, size, "plugstack.conf: unknown argument %s (valid: "
				 COMMAND "PATH)", value_shown(av[i], shown));
			return -1;
		}
		if (path[0] != '/' || strlen(path) >= PATH_MAX) {
			snprintf(why, size, "plugstack.conf: " COMMAND ": %s (valid: the absolute "
				 "path of hpcext)", value_shown(path, shown));
			return -1;
		}
		if (args->command != NULL) {
			snprintf(why, size, "plugstack.conf: " COMMAND " is given twice");
			return -1;
		}
		args->command = path;
	}
	return 0;
}
