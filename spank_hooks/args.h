/* What plugstack.conf says after the plugin's name. */
#ifndef HPCEXT_ARGS_H
#define HPCEXT_ARGS_H

#include <stddef.h>

struct args {
	const char *command; /* absolute path of hpcext, or NULL */
};

/* Reads the arguments; 0, or -1 with one line in `why`. */
int args_parse(struct args *args, int ac, char **av, char *why, size_t size);

#endif
