# make demo       five training jobs share six GPU slots of this machine, a minute or two
# make test       everything that continuous integration checks
# make test-slow  the exhaustive tests, properties with all of their examples, tests with all of their cases
# make test-slurm the tests on a real Slurm: the one that is installed, or RELEASE=24.11, RELEASE=26.05;
#                 CGROUPS=yes: one that confines jobs by cgroups
# make accept PARTITION=P ABOVE=Q  what a site runs after an installation, on the Slurm or LSF in PATH
# python tests/random_faults/draws.py SEED   replays a draw of the random faults; 0-1999: the long run
# make man        the manual pages, in build/man
# make site       docs/ and man/ as a site with a search, in build/site; a browser needs no server for it
# make deb        Debian packages, in build/packages; for another Slurm: RELEASE=24.11, RELEASE=26.05
# make rpm        RPM packages, in build/packages/rpm; the same
# make sdist      the archive of the sources, in build
# make release    what is published: wheel, archive of the sources and bill of materials, in build/release
# make spank      the plugin for the Slurm that is installed here, in build/spank
# Say PYTHON=python3.12 to choose the interpreter.

PYTHON ?= python3
BIN := .venv/bin
SCRIPTS := .ci/run .ci/venv .ci/install-packages .ci/criu tests/system/in-release tests/system/in-overlay lsf_scripts/* \
	benchmarks/gpu/run site_configs/packaging/wheels site_configs/packaging/sbom site_configs/packaging/for-release site_configs/packaging/install-tree site_configs/packaging/source-tree
ROOTS := spank_hooks/prolog/hpcext-prolog spank_hooks/epilog/hpcext-epilog
RELEASE ?=
CGROUPS ?=
PARTITION ?=
ABOVE ?=
# Packages are for the distribution's own Python.
SYSTEM_PYTHON ?= /usr/bin/python3
PACKAGES ?= build/packages
WHEELS ?= build/wheels
PAGES := $(patsubst man/%.rst,build/man/%,$(wildcard man/*.rst))
export PYTHON

.PHONY: demo test test-slow test-slurm accept test-environment system-packages python-packages lint style man site spank sdist release wheels packages-environment deb rpm clean

demo:
	@.ci/venv examples
	@# Six logical slots, on a machine with one GPU or eight too: the same show everywhere.
	PATH="$(CURDIR)/$(BIN):$$PATH" CUDA_VISIBLE_DEVICES= hpcext run examples/jobs.toml --gpus 6

test: style
	@# Types take a minute of one core: they are checked beside the tests, and what is wrong is told last.
	@# Of tests six at once, on two cores too: many of them wait. Those of one file share fixtures; files
	@# come in the order of tests/conftest.py, and not those first that have most tests.
	@# Beside them, too, tests are compiled once, and not by six processes that each read all of them.
	@mkdir -p build
	$(BIN)/mypy >build/mypy.log 2>&1 & types=$$!; \
	$(BIN)/pytest --collect-only -qq >build/tests.log || { cat build/tests.log; exit 1; }; \
	$(BIN)/pytest -n 6 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types || { cat build/mypy.log >&2; exit 1; }; exit $$tests

test-slow: test-environment
	@.ci/venv programs,release
	@# Slurm loads it by the name that only headers come with.
	@ldconfig -p | grep -q 'libpmix\.so ' || .ci/install-packages :libpmix-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" pytest -m "slow or hypothesis or cases"

test-slurm: test-environment
	PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(CGROUPS),TEST_SLURM_CGROUPS=1) \
		$(if $(RELEASE),tests/system/in-release $(RELEASE)) pytest tests/system

# Those of a real site, or of `python tests/system/slurm_cluster.py`.
accept:
	@[ -n "$(PARTITION)" ] || { echo 'say PARTITION=NAME, and ABOVE=NAME if its jobs preempt those' >&2; exit 2; }
	@.ci/venv examples
	PATH="$(CURDIR)/$(BIN):$$PATH" hpcext-admin accept \
		$$(if command -v bsub >/dev/null; then echo lsf; else echo slurm; fi) \
		--partition "$(PARTITION)" $(if $(ABOVE),--above "$(ABOVE)")

test-environment:
	@# It may need a package of the system, too; the rest of both is got at once.
	@.ci/venv
	@$(MAKE) --no-print-directory --jobs=2 system-packages python-packages

python-packages:
	@.ci/venv test,site,examples,lightning,transformers

system-packages:
	@.ci/install-packages shellcheck:shellcheck mandoc:mandoc unshare:util-linux mount:mount ip:iproute2 g++:g++ \
		slurmctld:slurm-wlm slurmdbd:slurmdbd slurmrestd:slurmrestd munged:munge mariadbd:mariadb-server valgrind:valgrind \
		lua5.1:lua5.1 lua5.4:lua5.4 ruby:ruby zsh:zsh fish:fish patch:patch logrotate:logrotate chromium:chromium \
		prometheus:prometheus prometheus-node-exporter:prometheus-node-exporter \
		mpirun.openmpi:openmpi-bin mpiexec.hydra:mpich systemd-analyze:systemd
	@# Headers and modules have no command to look for.
	@[ -e /usr/share/lmod ] || .ci/install-packages :lmod
	@[ -e /usr/include/slurm/spank.h ] || .ci/install-packages :libslurm-dev
	@.ci/criu

lint: style
	$(BIN)/mypy

style: test-environment spank
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
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

# It needs no network once the extra is installed.
site:
	@.ci/venv site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/mkdocs/mkdocs.yml

# What Spack builds from.
sdist: packages-environment
	$(SYSTEM_PYTHON) -c 'import setuptools; setuptools.setup()' -q sdist --dist-dir build

release:
	@.ci/venv release
	rm -rf build/release
	$(BIN)/python -m build --outdir build/release
	site_configs/packaging/sbom $(BIN)/python build/release/*.whl "$$(echo build/release/*.whl | sed 's/-py3.*/.cdx.json/')"

wheels: $(WHEELS)/requirements.txt

# The one step that needs the network.
$(WHEELS)/requirements.txt: setup.cfg
	site_configs/packaging/wheels $(SYSTEM_PYTHON) $(WHEELS)

packages-environment:
	@.ci/install-packages dpkg-buildpackage:dpkg-dev dh:debhelper rpmbuild:rpm
	@# What has no command to look for.
	@dpkg-query -W -f '$${Status}' build-essential 2>/dev/null | grep -q ' installed' || .ci/install-packages :build-essential
	@$(SYSTEM_PYTHON) -c 'import docutils, numpy, pip, scipy, setuptools, wheel' 2>/dev/null || \
		.ci/install-packages :python3-docutils :python3-numpy :python3-pip :python3-scipy \
			:python3-setuptools :python3-wheel
	@[ -e /usr/include/slurm/spank.h ] || .ci/install-packages :libslurm-dev

ifneq ($(RELEASE),)
deb rpm:
	site_configs/packaging/for-release $(RELEASE) $@
else
deb: packages-environment wheels
	cd "$$(site_configs/packaging/source-tree $(PACKAGES) $(WHEELS))" && dpkg-buildpackage -b -us -uc

rpm: packages-environment wheels
	@# Debian's rpm knows of no package that is installed here.
	tree=$$(site_configs/packaging/source-tree $(PACKAGES)/rpm $(WHEELS)) && \
		tar -C $(PACKAGES)/rpm -czf "$$tree.tar.gz" "$${tree##*/}" && \
		rpmbuild -tb --nodeps --define "_topdir $(CURDIR)/$(PACKAGES)/rpm" \
			--define "python $(SYSTEM_PYTHON)" \
			--define "slurm $$(dpkg-query -W -f '$${source:Upstream-Version}' libslurm-dev)" "$$tree.tar.gz"
endif

clean:
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
