# `make help` lists the targets. Each one sets up .venv first, once per change of pyproject.toml or constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
BUILT := $(VENV)/.built
NATIVE := $(shell find plugins -name "*.h" -o -name "*.cpp" -o -name "*.cmake" -o -name CMakeLists.txt) \
  $(wildcard plugins/cmake/*.py plugins/schema.py plugins/ops/*.py plugins/ops/*/__init__.py)
# The CUDA library takes minutes to compile, so only `make cuda` builds it.
INSTALL := $(BIN)/python -m pip install --quiet --no-deps --config-settings cmake.define.TIGHTBEAM_WERROR=ON
# An editable install makes the folder around the clone importable too, and with it everything inside that folder.
ALONE := $(BIN)/python -c 'import pathlib, sysconfig; \
  path = pathlib.Path(sysconfig.get_path("purelib"), "_editable_skbc_tightbeam.pth"); \
  path.exists() and path.write_text("".join(line for line in path.open() if line.startswith("import ")))'
# The server has an environment of its own, since its Python backend needs an older numpy; all else is found in .venv.
SERVER := $(VENV)/triton
SERVED := $(SERVER)/.installed
BESIDE := import pathlib, site, sys; path = pathlib.Path(sys.argv[1], "beside.pth"); \
  path.write_text("import site; site.addsitedir(%r)" % site.getsitepackages()[0])
NEW_ENOUGH := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "error: Tightbeam needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
       "name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
# Likewise, with onnxruntime-gpu in place of onnxruntime, which both are the package onnxruntime.
GPU := $(VENV)/gpu
ON_GPU := $(GPU)/.installed
# So have the docs, which need no torch. The site names the version and shows the code of this clone, so it is installed.
DOCS := $(VENV)/docs
ON_DOCS := $(DOCS)/.installed
# One more than cores, since the tests of the server wait now and then; each has torch in memory, so 4 at most.
PROCESSES := $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -lt 4 ] && echo $$((n + 1)) || echo 4)
ZOO := build/zoo/llama build/zoo/whisper build/zoo/marian
SEASONED := $(ZOO:%=%-all/config.json)
# They need no fixture, and so no torch, which conftest.py imports.
OPERATOR_TESTS := tests/plugins/test_operators.py tests/plugins/test_operator_errors.py

.DEFAULT_GOAL := help
.PHONY: help demo zoo real-check serve-demo server check test suite lint reference docs slow wheel release arm cuda cuda-check cuda-provider gpu-check sanitize valgrind fuzz soak clean

help: ## [0 min] list the targets, and the minutes that each takes on 2 idle cores once .venv is set up (which takes 2)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BUILT) ## [1 min] export the bundled model with --variant el, then write headlines for the bundled reports
	$(BIN)/export-model demo --variant el --output build/demo-el --force
	$(BIN)/run-model build/demo-el export/demo/examples.txt

zoo: $(READY) ## [45 min] train small models from nothing into build/zoo (speech, chat, translation) that are not there yet
	$(BIN)/python -m tools.zoo

real-check: $(BUILT) $(if $(CHECKPOINTS),,$(SEASONED)) ## [16 min] try CHECKPOINTS="PATH_OR_ID ..." (else the zoo) on real inputs (INPUTS=folder) beside torch and others
	$(BIN)/python -m tools.real_check $(or $(CHECKPOINTS),$(ZOO) $(ZOO:%=--without-speed %-all)) $(INPUTS:%=--inputs %)

# Seasoned copies of the zoo: the numbers that large models have.
build/zoo/%-all/config.json: build/zoo/%/model.safetensors
	rm -rf $(@D)
	$(BIN)/python -m tools.zoo.season build/zoo/$* --level all --output $(@D)

build/zoo/%/model.safetensors:
	@echo "error: build/zoo/$* does not exist; run: make zoo" >&2; exit 1

serve-demo: $(BUILT) $(SERVED) ## [1 min] serve the bundled model with Triton Inference Server on loopback, and print a request
	$(BIN)/export-model demo --variant dedup --output build/demo-dedup --force
	$(BIN)/triton-repo build/demo-dedup build/models --name demo --force > /dev/null
	$(BIN)/serve-local build/models --text "$$(head -1 export/demo/examples.txt)"

server: $(BUILT) $(SERVED) ## [0 min] install Triton Inference Server into .venv/triton, where serve-local finds it

check: lint $(BUILT) ## [2 min at most] lint, and the tests that matter for what changed against main; see tools/check.py
	@$(BIN)/python -m tools.check

test: $(BUILT) $(SERVED) ## [8 to 18 min] lint, and every test that needs neither minutes nor a GPU, side by side
	@$(MAKE) --no-print-directory --jobs 2 lint suite

# Bytecode is written, since tests start hundreds of commands.
suite:
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile \
	  --no-loadscope-reorder -m "not slow and not gpu"

lint: $(READY) ## [1 min] formatting, strict types, and which module may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files "*.h" "*.cpp" "*.cu" "*.cuh" "*.c")
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir build/import-linter

reference: $(READY) ## [0 min] write the tables of docs/ that are made from the code, after a change of a help text or of a table
	$(BIN)/python -m tools.docs

docs: $(ON_DOCS) ## [0 min] build the documentation as a site in build/site; a dead link or an old table fails it
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict
	@echo "the site is in build/site: open build/site/index.html"

slow: $(BUILT) ## [not measured] the tests that take minutes or gigabytes
	$(BIN)/python -m pytest -m "slow and not gpu"

wheel: $(READY) ## [1 min] build the wheel with the CPU library into dist/, for machines without a compiler
	$(BIN)/python -m tools.wheel dist

release: $(BUILT) $(SERVED) ## [22 min] check that a release can be made, run the tests, and build its files in dist/release
	$(BIN)/python -m tools.release dist/release

arm: $(BUILT) ## [7 min] compile for arm64, and run every operator's cases, the demo and a tiny Whisper under QEMU
	$(BIN)/python -m tools.arm64
	$(BIN)/python -m pytest -m slow tests/tools/test_arm64.py

cuda: $(READY) ## [12 min] build and install the CUDA library too, for every supported GPU; needs nvcc
	$(INSTALL) --config-settings cmake.define.TIGHTBEAM_CUDA=ON -e .
	@$(ALONE)

cuda-check: $(BUILT) ## [4 min] compile each CUDA kernel for each kind of GPU, without one, and compare its counts with its budget
	$(BIN)/python -m tools.cuda_check

gpu-check: $(ON_GPU) ## [66 min at most] every check and measurement that needs a GPU, on the GPU of this machine; see docs/hardware.md
	$(GPU)/bin/python tools/gpu_check.py

cuda-provider: $(READY) ## [not measured] ONNX Runtime's CUDA provider over our graphs, without a GPU; needs nvcc and cmake
	cmake -S plugins -B build/cuda-provider/library -DTIGHTBEAM_CUDA=ON -DTIGHTBEAM_SHARED_CUDA_RUNTIME=ON \
	  -DTIGHTBEAM_CUDA_ARCHITECTURES=90-real
	cmake --build build/cuda-provider/library --parallel
	$(BIN)/python -m pip install --quiet --no-deps --upgrade -c constraints.txt --target build/cuda-provider/python onnxruntime-gpu
	$(BIN)/python -m pytest -m slow tests/plugins/test_cuda_provider.py

sanitize: $(READY) ## [2 min] the operator tests with address and undefined behaviour sanitizers; needs cmake
	cmake -S plugins -B build/sanitize -DTIGHTBEAM_WERROR=ON -DTIGHTBEAM_SANITIZE=ON
	cmake --build build/sanitize
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc TIGHTBEAM_LIBRARY=build/sanitize/libtightbeam_cpu.so \
	  $(BIN)/python -m pytest -s --noconftest $(OPERATOR_TESTS)

valgrind: $(READY) ## [not measured] the operator tests under valgrind; needs cmake and valgrind
	cmake -S plugins -B build/valgrind -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/valgrind
	$(BIN)/python tools/memcheck.py build/valgrind/libtightbeam_cpu.so --noconftest $(OPERATOR_TESTS)

fuzz: $(BUILT) ## [not measured] mutated bundles, tokenizers, requests, tries, sounds and images, each for MINUTES=10 of processor time
	@failed=; for target in tests/fuzz/test_*.py; do \
	  TIGHTBEAM_FUZZ_SECONDS=$$(( 60 * $(or $(MINUTES),10) )) $(BIN)/python -m pytest -q -s -m fuzz $$target || failed="$$failed $$target"; done; \
	  [ -z "$$failed" ] || { echo "error: failed, with the examples in build/fuzz:$$failed" >&2; exit 1; }

soak: $(BUILT) $(SERVED) ## [35 min] serve tiny models under hostile requests, kills and a full disk (MINUTES=30 SEED=1)
	$(BIN)/python -m tools.soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

clean: ## [0 min] remove .venv, build output and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find export graph_passes plugins deploy tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	@echo "setting up $(VENV): a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt --config-settings wheel.cmake=false -e '.[dev]'
	@$(ALONE)
	@touch $@

$(SERVED): $(READY) tools/serve/tritonserver.txt
	$(BIN)/python -m venv --clear --without-pip $(SERVER)
	@$(BIN)/python -c '$(BESIDE)' "$$($(SERVER)/bin/python -c 'import site; print(site.getsitepackages()[0])')"
	@$(BIN)/python -m pip --python $(SERVER)/bin/python install --quiet --no-deps --only-binary :all: \
	  -r tools/serve/tritonserver.txt || echo "warning: there is no Triton Inference Server for this machine; its tests are skipped" >&2
	@touch $@

$(ON_DOCS): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	@echo "setting up $(DOCS): a minute"
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet -c constraints.txt --config-settings wheel.cmake=false -e '.[docs]'
	@touch $@

$(ON_GPU): $(READY)
	$(BIN)/python -m venv --clear --without-pip $(GPU)
	@$(BIN)/python -c '$(BESIDE)' "$$($(GPU)/bin/python -c 'import site; print(site.getsitepackages()[0])')"
	@$(BIN)/python -m pip --python $(GPU)/bin/python install --quiet --no-deps -c constraints.txt onnxruntime-gpu
	@touch $@

$(BUILT): $(READY) $(NATIVE)
	$(INSTALL) -e .
	@$(ALONE)
	@$(BIN)/python -c 'import sys; from tightbeam.plugins.library import cpu_library; sys.exit(cpu_library() is None)' || \
	  echo "warning: the native library did not compile; the functions inside a model run in its place, and its tests" \
	       "are skipped. For the reason: cmake -S plugins -B build/native && cmake --build build/native" >&2
	@touch $@
