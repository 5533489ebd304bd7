# make demo       five training jobs share six GPU slots of this machine, a minute or two
# make test       everything that continuous integration checks
# make test-slow  the exhaustive tests
# python tests/random_faults/draws.py SEED   replays a draw of the random faults; 0-1999: the long run
# make man        the manual pages, in build/man
# Say PYTHON=python3.12 to choose the interpreter.

PYTHON ?= python3
BIN := .venv/bin
SCRIPTS := .ci/run .ci/venv .ci/install-packages
PAGES := $(patsubst man/%.rst,build/man/%,$(wildcard man/*.rst))
export PYTHON

.PHONY: demo test test-slow test-environment lint man clean

demo:
	@.ci/venv examples
	@# Six logical slots, on a machine with one GPU or eight too: the same show everywhere.
	PATH="$(CURDIR)/$(BIN):$$PATH" CUDA_VISIBLE_DEVICES= hpcext run examples/jobs.toml --gpus 6

test: lint
	@# Two at once: they mostly wait for processes to start. Those of one file share fixtures.
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: test-environment
	$(BIN)/pytest -m slow

test-environment:
	@.ci/install-packages shellcheck:shellcheck mandoc:mandoc unshare:util-linux mount:mount g++:g++ \
		slurmctld:slurm-wlm slurmdbd:slurmdbd munged:munge mariadbd:mariadb-server
	@.ci/venv test,examples,lightning,transformers

lint: test-environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck $(SCRIPTS)

man: test-environment $(PAGES)

build/man/%: man/%.rst
	@mkdir -p $(@D)
	$(BIN)/python -m docutils --writer=manpage --halt=warning $< $@

clean:
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
