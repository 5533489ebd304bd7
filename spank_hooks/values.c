#include "values.h"

#include <stdio.h>
#include <string.h>

enum {
	LEAD_MIN_S = 10,
	LEAD_MAX_S = 86400,
	GPUS_MAX = 1024, /* MAX_GPUS of hpcext/jobfields.py */
	NODES_MAX = 10000,
	NAME_MAX_CHARS = 64,
	NUMBER_MAX_DIGITS = 5,
	SHOWN_BYTES = 60 /* SHOWN_CHARS of hpcext/text.py */
};

/* isalnum() and isdigit() depend on the locale of whoever runs sbatch. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Reads text[0..len) as a number. No sign, no space, and no leading zero: a script's $((...)) would
 * take it for octal. Returns 0, which is never valid here, if it is none. */
static long number(const char *text, size_t len)
{
	long value = 0;

	if (len < 1 || len > NUMBER_MAX_DIGITS || text[0] == '0')
		return 0;
	for (size_t i = 0; i < len; i++) {
		if (!is_digit(text[i]))
			return 0;
		value = 10 * value + (text[i] - '0');
	}
	return value;
}

static bool in_range(long value, long low, long high)
{
	return low <= value && value <= high;
}

static const char *range_problem(const char *value, long high)
{
	const char *colon = strchr(value, ':');
	long min, max;

	if (colon == NULL)
		return "";
	min = number(value, (size_t)(colon - value));
	max = number(colon + 1, strlen(colon + 1));
	if (!in_range(min, 1, high) || !in_range(max, 1, high))
		return "";
	return min <= max ? NULL : "MIN is more than MAX";
}

static const char *lead_problem(const char *value)
{
	return in_range(number(value, strlen(value)), LEAD_MIN_S, LEAD_MAX_S) ? NULL : "";
}

bool value_is_number(const char *value)
{
	return in_range(number(value, strlen(value)), 1, GPUS_MAX);
}

static const char *gpus_problem(const char *value)
{
	if (strcmp(value, "auto") == 0 || value_is_number(value))
		return NULL;
	return range_problem(value, GPUS_MAX);
}

/* The rule of name() in hpcext/jobfields.py. */
static const char *name_problem(const char *value)
{
	size_t len = strlen(value), digits = 0;

	if (!in_range((long)len, 1, NAME_MAX_CHARS))
		return "";
	for (size_t i = 0; i < len; i++) {
		bool mark = i > 0 && strchr("._-", value[i]) != NULL;

		if (!is_digit(value[i]) && !is_letter(value[i]) && !mark)
			return "";
		digits += is_digit(value[i]);
	}
	return digits < len ? NULL : "a number is no name";
}

static const char *nodes_problem(const char *value)
{
	return range_problem(value, NODES_MAX);
}

/* PRESETS of hpcext/checkpointers.py. */
static const char *preset_problem(const char *value)
{
	static const char *const names[] = {"lightning", "transformers", "accelerate", "submitit",
					    "keras", "jax", "torchrun", "plain", "transparent"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(value, names[i]) == 0)
			return NULL;
	return "";
}

static const struct {
	const char *(*problem)(const char *value);
	const char *valid;
} rules[VALUE_KINDS] = {
	[VALUE_LEAD] = {lead_problem, "whole seconds, 10 to 86400"},
	[VALUE_GPUS] = {gpus_problem, "auto, N or MIN:MAX, numbers from 1 to 1024"},
	[VALUE_NAME] = {name_problem, "a profile's name: letters, digits, . _ -; a letter or digit "
				      "first; at most 64"},
	[VALUE_NODES] = {nodes_problem, "MIN:MAX, numbers from 1 to 10000"},
	[VALUE_PRESET] = {preset_problem, "lightning, transformers, accelerate, submitit, keras, jax, "
					  "torchrun, plain or transparent"},
};

const char *value_problem(enum value_kind kind, const char *value)
{
	return rules[kind].problem(value);
}

const char *value_valid(enum value_kind kind)
{
	return rules[kind].valid;
}

const char *value_shown(const char *value, char buf[SHOWN_SIZE])
{
	size_t end = 0, i;

	buf[end++] = '\'';
	for (i = 0; value[i] != '\0' && i < SHOWN_BYTES; i++) {
		unsigned char byte = (unsigned char)value[i];

		/* A terminal would obey what does not print, and a line must stay one line. */
		if (byte >= 0x20 && byte < 0x7f && byte != '\\')
			buf[end++] = (char)byte;
		else
			end += (size_t)snprintf(buf + end, SHOWN_SIZE - end, "\\x%02x", byte);
	}
	snprintf(buf + end, SHOWN_SIZE - end, value[i] == '\0' ? "'" : "'...");
	return buf;
}
