# Needs make and Python 3.11 or newer with its venv module; everything else is installed into .venv from hash-locked
# requirements. `make help` lists the targets. To use another Python: make test PYTHON=python3.12 VENV=.venv-3.12

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGUMENTS ?=
# Number of test processes, at most four, as each holds some GB of compiled programs. 0: all tests run in one process.
PYTEST_WORKERS ?= auto
QUICKSTART_WORKDIR ?= runs/quickstart

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DELETE_ON_ERROR:
.NOTPARALLEL:
# Compiled modules of the package and of the tests save time in every later process.
unexport PYTHONDONTWRITEBYTECODE
# files whose tests compile for devices that this machine lacks
PLAN_TESTS = tests/planning tests/attention/softmax/test_cudnn.py tests/attention/softmax/test_mosaic.py tests/attention/softmax/test_splash.py \
  tests/scripts/benchmarks/test_planned_attention.py
BROWSER_TESTS = tests/inspection/test_attention_page_browser.py
.PHONY: help quickstart test test-fast test-all test-plan browser lint format docs lock peers plan beam harness tfds linkcheck clean install-run \
  install-test install-docs install-browser

install = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-input
# Installs the lock $(2) into the environment $(1). The lock is also a constraint: where a package asks for another with
# an extra, such as uvicorn[standard], pip otherwise takes its newest version, for which the lock has no hash.
install_lock = $(call install,$(1)) --require-hashes --requirement $(2) --constraint $(2)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: $(VENV)/.run  ## pretrain, evaluate and try a small ALBERT on text that Python brings along (about 3 minutes on two CPU cores)
	@echo '[quickstart 1/3] pretraining: $(QUICKSTART_WORKDIR)'
	@$(VENV)/bin/python train.py --config configs/quickstart.py --workdir $(QUICKSTART_WORKDIR)
	@echo '[quickstart 2/3] evaluating on held-out documents'
	@$(VENV)/bin/python eval.py --workdir $(QUICKSTART_WORKDIR)
	@echo '[quickstart 3/3] filling masks'
	@$(VENV)/bin/python scripts/fill_mask.py --model $(QUICKSTART_WORKDIR) 'A list is a [MASK] type.' \
	  'Return the [MASK] of the file.' 'If the argument is not a [MASK], an exception is raised.'

test: $(VENV)/.test  ## run the test suite without the marks slow, gpu, tpu, real, browser
	@$(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	  $(PYTEST_ARGUMENTS)

# The files with tests marked fast. Pytest reads only these files, as it needs most of a minute to read all.
FAST_FILES = $$(grep -rlF --include='test_*.py' pytest.mark.fast tests)

# Compiled programs stay in cache/programs, so that the next run compiles only programs that have changed.
test-fast: $(VENV)/.test  ## the tests marked fast: a cell of each mechanism, three steps of each task (minutes)
	@JAX_COMPILATION_CACHE_DIR=$${JAX_COMPILATION_CACHE_DIR:-$(CURDIR)/cache/programs} \
	  $(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --maxprocesses 4 -m fast $(PYTEST_ARGUMENTS) $(FAST_FILES)

test-all: $(VENV)/.test  ## the suite with the tests marked slow, then the fast ones compiled as for users
	@$(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --maxprocesses 4 --dist worksteal \
	  -m 'not gpu and not tpu and not real and not browser' $(PYTEST_ARGUMENTS)
	@echo '[test-all] the fast tests once more, compiled as for users'
	@COMPILE_AS_FOR_USERS=1 $(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --maxprocesses 4 -m fast $(FAST_FILES)

lint: $(VENV)/.run .venv-lint/.lint  ## check format and rules (ruff) and types (mypy)
	@.venv-lint/bin/ruff format --check .
	@.venv-lint/bin/ruff check .
	@.venv-lint/bin/mypy --python-executable $(VENV)/bin/python

format: .venv-lint/.lint  ## rewrite the files as `make lint` wants them
	@.venv-lint/bin/ruff check --fix .
	@.venv-lint/bin/ruff format .

# Sphinx makes every warning an error, such as a link or an anchor that does not exist. Tutorials run in the build if they
# or the package have changed; their results stay in build/notebooks, their compiled programs in cache/programs.
docs: .venv-docs/.docs  ## build the site and run its tutorials: build/docs/index.html (minutes)
	@JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu} \
	  JAX_COMPILATION_CACHE_DIR=$${JAX_COMPILATION_CACHE_DIR:-$(CURDIR)/cache/programs} \
	  .venv-docs/bin/python -m sphinx --fail-on-warning --quiet -d build/doctrees docs build/docs
	@echo 'built build/docs/index.html'

linkcheck: docs  ## build the site, then check its links to other sites (needs a network)
	@.venv-docs/bin/python -m sphinx --builder linkcheck --quiet -d build/doctrees docs build/linkcheck

install-run: $(VENV)/.run
	@:

install-test: $(VENV)/.test
	@:

install-docs: .venv-docs/.docs
	@:

install-browser: .venv-browser/.browser
	@:

# ---- environments: a stamp file is newer than its lock file if the environment has the packages of that lock ----

# Checks the Python version and creates the environment $(1). Its path has this folder, so that scripts find
# the package, and its bin/ has the command.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'error: $(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo 'error: $(PYTHON) has no venv module (on Debian: apt install python3-venv)' >&2; exit 1; }
	@test -x $(1)/bin/pip || { echo '[set-up] creating $(1)'; $(PYTHON) -m venv $(1); }
	@$(1)/bin/python -c "import os, pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_path('purelib'), 'efficient_attention.pth').write_text(os.getcwd() + os.linesep)"
	@printf '%s\n' '#!$(abspath $(1))/bin/python' 'from efficient_attention.programs.dispatch import main' '' \
	  "if __name__ == '__main__':" '    main()' >$(1)/bin/efficient-attention && chmod +x $(1)/bin/efficient-attention
endef

$(VENV)/.run: requirements/run.txt
	$(call environment,$(VENV))
	@echo '[set-up] installing requirements/run.txt into $(VENV) (about a minute)'
	@$(call install_lock,$(VENV),requirements/run.txt)
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	@echo '[set-up] installing requirements/test.txt into $(VENV)'
	@$(call install_lock,$(VENV),requirements/test.txt)
	@touch $@

.venv-lint/.lint: requirements/lint.txt
	$(call environment,.venv-lint)
	@echo '[set-up] installing requirements/lint.txt into .venv-lint'
	@$(call install_lock,.venv-lint,requirements/lint.txt)
	@touch $@

peers: .venv-peers/.peers  ## environment with PyTorch and transformers, for scripts/benchmark.py
.venv-peers/.peers: requirements/peers.txt
	$(call environment,.venv-peers)
	@echo '[set-up] installing requirements/peers.txt into .venv-peers'
	@$(call install,.venv-peers) "$$(grep '^torch==' $<)" && $(call install,.venv-peers) -r $< || \
	  { echo 'error: pip could not install what $< names (see above); its comment says where torch may come from' >&2; exit 1; }
	@touch $@

# Slow tests compile whole steps for GPUs and TPUs, one after another, because each takes some GB.
test-plan: .venv-plan/.plan  ## the tests that need the compilers for TPUs and NVIDIA GPUs
	@.venv-plan/bin/python -m pytest -n 0 -m 'not gpu and not tpu and not real and not browser' $(PLAN_TESTS) $(PYTEST_ARGUMENTS)

plan: .venv-plan/.plan  ## environment with the compilers for TPUs and NVIDIA GPUs, for scripts/plan.py (6 GB)
.venv-plan/.plan: requirements/plan.txt
	$(call environment,.venv-plan)
	@echo '[set-up] installing requirements/plan.txt into .venv-plan (Linux on x86-64; minutes)'
	@$(call install_lock,.venv-plan,requirements/plan.txt)
	@touch $@

.venv-docs/.docs: requirements/docs.txt
	$(call environment,.venv-docs)
	@echo '[set-up] installing requirements/docs.txt into .venv-docs'
	@$(call install_lock,.venv-docs,requirements/docs.txt)
	@touch $@

browser: .venv-browser/.browser  ## the tests of pages in a browser; installs Chromium on Debian where it is missing
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { echo '[set-up] installing chromium and chromium-driver'; \
	  sudo=$$(command -v sudo || true); $$sudo apt-get update -qq && $$sudo apt-get install -qq -y chromium chromium-driver; } || \
	  { echo 'error: chromium or chromedriver is missing, and apt-get could not install it' >&2; exit 1; }
	@.venv-browser/bin/python -m pytest -p no:hypothesispytest -n 0 -m browser $(BROWSER_TESTS) $(PYTEST_ARGUMENTS)

# Selenium alone is installed here; every other package is that of $(VENV).
.venv-browser/.browser: requirements/browser.txt $(VENV)/.test
	$(call environment,.venv-browser)
	@echo '[set-up] installing requirements/browser.txt into .venv-browser'
	@$(call install_lock,.venv-browser,requirements/browser.txt)
	@where='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(VENV)/bin/python -c "$$where" >"$$(.venv-browser/bin/python -c "$$where")/test_environment.pth"
	@touch $@

beam: .venv-beam/.beam  ## environment with Apache Beam, for scripts/prepare_corpus_beam.py
.venv-beam/.beam: requirements/beam.txt
	$(call environment,.venv-beam)
	@echo '[set-up] installing requirements/beam.txt into .venv-beam'
	@$(call install_lock,.venv-beam,requirements/beam.txt)
	@touch $@

harness: .venv-harness/.harness  ## environment with lm-evaluation-harness, for tests/scoring/test_harness.py
.venv-harness/.harness: requirements/harness.txt
	$(call environment,.venv-harness)
	@echo '[set-up] installing requirements/harness.txt into .venv-harness'
	@$(call install_lock,.venv-harness,$<)
	@touch $@

tfds: .venv-tfds/.tfds  ## prepare a TensorFlow Datasets set in data/tfds: make tfds NAME=imdb_reviews [FORMAT=tfrecord]
	@.venv-tfds/bin/python scripts/prepare_tfds.py --name '$(NAME)' --format '$(or $(FORMAT),array_record)'

.venv-tfds/.tfds: requirements/tfds.txt
	$(call environment,.venv-tfds)
	@echo '[set-up] installing requirements/tfds.txt, with TensorFlow, into .venv-tfds (minutes)'
	@$(call install_lock,.venv-tfds,requirements/tfds.txt)
	@touch $@

# ---- locks: one universal file fits every Python and platform; run and plan are constrained by the test lock ----

compile = .venv-lock/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-emit-index-url --no-annotate --upgrade

lock:  ## renew requirements/{run,test,lint,browser,plan,docs,harness,beam,tfds}.txt from pyproject.toml and tfds.in
	$(call environment,.venv-lock)
	@$(call install,.venv-lock) --upgrade uv
	@index=$$(.venv-lock/bin/python -m pip config get global.index-url 2>/dev/null || true); \
	  export UV_DEFAULT_INDEX=$${UV_DEFAULT_INDEX:-$${index:-}}; test -n "$$UV_DEFAULT_INDEX" || unset UV_DEFAULT_INDEX; \
	  $(compile) --extra test --output-file requirements/test.txt >/dev/null; \
	  $(compile) --extra train --constraints requirements/test.txt --output-file requirements/run.txt >/dev/null; \
	  $(compile) --extra test --extra tpu --extra cuda --constraints requirements/test.txt --output-file requirements/plan.txt >/dev/null; \
	  $(compile) --extra train --extra docs --constraints requirements/test.txt --output-file requirements/docs.txt >/dev/null; \
	  $(compile) --extra test --extra harness --output-file requirements/harness.txt >/dev/null; \
	  $(subst pyproject.toml,--group lint,$(compile)) --output-file requirements/lint.txt >/dev/null; \
	  $(subst pyproject.toml,--group browser,$(compile)) --constraints requirements/test.txt --output-file requirements/browser.txt >/dev/null; \
	  $(subst pyproject.toml,--group beam,$(compile)) --output-file requirements/beam.txt >/dev/null; \
	  $(subst pyproject.toml,requirements/tfds.in,$(compile)) --output-file requirements/tfds.txt >/dev/null
	@! grep -n '://' requirements/test.txt requirements/run.txt requirements/plan.txt requirements/docs.txt requirements/harness.txt requirements/lint.txt requirements/browser.txt requirements/beam.txt requirements/tfds.txt
	@echo 'renewed requirements/test.txt, run.txt, plan.txt, docs.txt, harness.txt, lint.txt, browser.txt, beam.txt and tfds.txt'

clean:  ## remove environments, builds, tool caches and compiled programs; runs/, data/ and the rest of cache/ stay
	rm -rf cache/programs .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
