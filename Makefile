# make demo       five training jobs share six GPU slots of this machine, a minute or two
# make test       everything that continuous integration checks
# make test-slow  the exhaustive tests
# make test-slurm the tests on a real Slurm: the one that is installed, or RELEASE=24.11, RELEASE=26.05
# python tests/random_faults/draws.py SEED   replays a draw of the random faults; 0-1999: the long run
# make man        the manual pages, in build/man
# make spank      the plugin for the Slurm that is installed here, in build/spank
# Say PYTHON=python3.12 to choose the interpreter.

PYTHON ?= python3
BIN := .venv/bin
SCRIPTS := .ci/run .ci/venv .ci/install-packages tests/system/in-release lsf_scripts/*
ROOTS := spank_hooks/prolog/hpcext-prolog spank_hooks/epilog/hpcext-epilog
RELEASE ?=
PAGES := $(patsubst man/%.rst,build/man/%,$(wildcard man/*.rst))
export PYTHON

.PHONY: demo test test-slow test-slurm test-environment lint man spank clean

demo:
	@.ci/venv examples
	@# Six logical slots, on a machine with one GPU or eight too: the same show everywhere.
	PATH="$(CURDIR)/$(BIN):$$PATH" CUDA_VISIBLE_DEVICES= hpcext run examples/jobs.toml --gpus 6

test: lint
	@# Three at once, on two cores too: they mostly wait. Those of one file share fixtures; the files
	@# that take longest, those on a Slurm, come first, and not those that have most tests.
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: test-environment
	$(BIN)/pytest -m slow

test-slurm: test-environment
	PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(RELEASE),tests/system/in-release $(RELEASE)) pytest tests/system

test-environment:
	@.ci/install-packages shellcheck:shellcheck mandoc:mandoc unshare:util-linux mount:mount g++:g++ \
		slurmctld:slurm-wlm slurmdbd:slurmdbd munged:munge mariadbd:mariadb-server valgrind:valgrind \
		lua5.1:lua5.1 lua5.4:lua5.4 chromium:chromium
	@# Headers have no command to look for.
	@[ -e /usr/include/slurm/spank.h ] || .ci/install-packages :libslurm-dev
	@.ci/venv test,examples,lightning,transformers

lint: test-environment spank
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck $(SCRIPTS)
	@# Root's python3 may be that of RHEL 8.
	$(BIN)/vermin --quiet --no-tips -t=3.6- $(ROOTS)

spank: test-environment
	@# Warnings are errors there.
	$(MAKE) -C spank_hooks

man: test-environment $(PAGES)

build/man/%: man/%.rst
	@mkdir -p $(@D)
	$(BIN)/python -m docutils --writer=manpage --halt=warning $< $@

clean:
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
