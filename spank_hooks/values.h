/* What the values of the options may be. Plain C: nothing of Slurm is needed to check or test it. */
#ifndef HPCEXT_VALUES_H
#define HPCEXT_VALUES_H

#include <stdbool.h>
#include <stddef.h>

/* The longest valid value is a profile's name of 64 characters. */
#define VALUE_SIZE 80
/* A value as messages show it: 60 bytes, each at worst as \xNN, in quotes, with "...". */
#define SHOWN_SIZE 256

enum value_kind {
	VALUE_LEAD,  /* whole seconds */
	VALUE_GPUS,  /* auto, N or MIN:MAX */
	VALUE_NAME,  /* of a profile */
	VALUE_NODES, /* MIN:MAX */
	VALUE_PRESET, /* how a training saves */
	VALUE_KINDS
};

/* Returns what is wrong with a value ("" if there is nothing more to say than that it is not
 * valid), or NULL if it is valid. */
const char *value_problem(enum value_kind kind, const char *value);

/* What is valid, for messages. */
const char *value_valid(enum value_kind kind);

/* Whether a valid value of VALUE_GPUS is one number: nothing is left to choose. */
bool value_is_number(const char *value);

/* Writes a value that anybody may have made up as one printable line, quoted and cut. */
const char *value_shown(const char *value, char buf[SHOWN_SIZE]);

#endif
