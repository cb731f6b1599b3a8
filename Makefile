# Commands for developers. `make help` lists them; the logic is in scripts/ and tests/vm.

PYTHON ?= python3
ARGS ?=
export PYTHON
# Without bytecode each start compiles all modules again, and pytest rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE

bin := .venv/bin
# Programs that virtme-ng calls; without udev it finds no port to print to, without file no busybox.
vm-packages := busybox-static file iproute2 kmod qemu-system-x86 udev
# What a kernel of arm64 needs on a machine with another processor: an emulator, and a compiler for the page parser.
arm-packages := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-system-arm
# Programs that the kernel suite compares the agent with, and runs it under.
suite-packages := $(vm-packages) bpftrace curl dmsetup dwarves e2fsprogs g++ jq libseccomp2 php8.2-cli postgresql-15 strace systemd util-linux xfsprogs trace-cmd
# Programs that build the container image, and run it.
image-packages := buildah catatonit podman runc
# Programs that make a bare Debian, to install the agent in.
root-packages := iproute2 mmdebstrap python3-dev python3-venv systemd util-linux
# Programs that make what is released, and judge it.
release-packages := $(image-packages) $(root-packages) lintian rpm rpmlint
# The command that `make demo` runs in the guest.
COMMAND ?= $(bin)/kprobe-exporter run $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help run port test quick check engine vmtest demo bench fuzz soak differential shell reference fixtures dist deb packages image release dist-test hooks clean .venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

run: port .venv/runtime.stamp ## the agent on this machine, on :10435 (ARGS="--config FILE")
	$(bin)/kprobe-exporter run $(ARGS)

# Building takes minutes, after which a port in use would be bad news.
port:
	@$(PYTHON) scripts/port-is-free $(ARGS)

test: .venv/test.stamp ## the suites of this machine, and the kernel suite in a VM per kernel (DRAW=all, ARGS="--suite deploy")
	@scripts/debian-packages $(suite-packages) $(arm-packages) $(image-packages) $(root-packages) chromium chromium-driver openssl
	@command -v npm >/dev/null || scripts/debian-packages npm
	@$(bin)/python -m tests.vm test $(ARGS)

quick: .venv/test.stamp ## lint, format, types and the unit tests of the files that differ from the last commit
	$(bin)/ruff check -q
	$(bin)/ruff format --check -q
	$(bin)/mypy
	$(bin)/python -m tests.quick

check: .venv/test.stamp ## lint, format, types and the unit tests that are not slow
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/python -m tests.check

# The module that `pip install` builds as well, but only what has changed, in seconds.
sources := kprobe_exporter/engine
strict := -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror
objects := $(patsubst $(sources)/%.c,build/engine/%.o,$(wildcard $(sources)/*.c))

engine: kprobe_exporter/source/_pages.abi3.so ## compile what has changed of the event engine, in .venv

kprobe_exporter/source/_pages.abi3.so: $(objects) build/engine/_pages.o
	gcc -shared $^ -o build/engine/$(@F)
	@mv build/engine/$(@F) $@

build/engine/%.o: $(sources)/%.c $(wildcard $(sources)/*.h)
	@mkdir -p $(@D)
	gcc $(strict) -c $< -o $@

build/engine/_pages.o: $(wildcard kprobe_exporter/source/_p*.p[yx][xdi]) $(sources)/engine.h
	@mkdir -p $(@D)
	$(bin)/python -m cython -3 kprobe_exporter/source/_pages.pyx -o $(@:.o=.c)
	gcc -O2 -g -fPIC -w -DPy_LIMITED_API=0x030B0000 -I$(sources) \
		-I$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])') -c $(@:.o=.c) -o $@

vmtest: .venv/test.stamp ## the kernel suite in VMs (KERNEL=6.1 ARGS="tests/kernel/test_x.py -k y")
	@scripts/debian-packages $(suite-packages) $(if $(findstring arm64,$(or $(KERNEL),arm64)),$(arm-packages))
	@$(bin)/python -m tests.vm run $(KERNEL:%=--kernel %) -- $(ARGS)

demo: .venv/test.stamp ## the agent in a VM that has kprobes (KERNEL=6.12 PORT=10435 ARGS="--config FILE")
	@scripts/debian-packages $(vm-packages) $(if $(findstring arm64,$(KERNEL)),$(arm-packages))
	@$(bin)/python -m tests.vm demo $(KERNEL:%=--kernel %) $(PORT:%=--port %) -- $(COMMAND)

bench: .venv/test.stamp ## what it costs, measured and written to docs/benchmarks.md (ARGS="throughput start")
	@scripts/debian-packages $(suite-packages) trace-cmd
	@$(bin)/python -m tests.bench $(ARGS)

fuzz: .venv/test.stamp ## wrong bytes for the parsers (ARGS="--seconds 60 pages http"), into docs/reliability.md
	@scripts/debian-packages openssl
	@$(bin)/python -m tests.fuzz $(ARGS)

soak: .venv/test.stamp ## an agent under load for many minutes, written to docs/reliability.md (KERNEL=6.12 MINUTES=30)
	@scripts/debian-packages $(suite-packages)
	@$(bin)/python -m tests.faults.soaking $(KERNEL:%=--kernel %) $(MINUTES:%=--minutes %)

differential: .venv/test.stamp ## drawn probes under drawn loads in a VM (KERNEL=6.1 SEEDS=10000 ARGS="--first-seed 7")
	@scripts/debian-packages $(suite-packages)
	@$(bin)/python -m tests.kernel.differential $(KERNEL:%=--kernel %) $(SEEDS:%=--seeds %) $(ARGS)

shell: .venv/test.stamp ## a shell in a VM (KERNEL=6.12)
	@scripts/debian-packages $(vm-packages)
	@$(bin)/python -m tests.vm shell $(KERNEL:%=--kernel %)

reference: .venv/test.stamp ## write what is generated: reference pages, the man page, completions, system calls
	@$(bin)/python -m tests.reference

fixtures: .venv/test.stamp ## capture tests/fixtures again, from the kernels themselves
	@scripts/debian-packages $(vm-packages) $(arm-packages)
	scripts/capture-fixtures

dist: ## the sdist and the wheels for x86-64 and aarch64, into dist/ (OUTPUT=DIRECTORY)
	@$(PYTHON) -m release $(OUTPUT:%=--output %) wheels

deb: ## the Debian package for this machine's processor alone, without rpm and lintian (OUTPUT=DIRECTORY)
	@$(PYTHON) -m release $(OUTPUT:%=--output %) deb

packages: ## as dist, and from the wheels the Debian and the RPM packages for both processors (OUTPUT=DIRECTORY)
	@scripts/debian-packages lintian rpm rpmlint
	@$(PYTHON) -m release $(OUTPUT:%=--output %) packages

image: ## as dist, and from the wheels the image for both processors, over the Dockerfile's base (BASE=IMAGE)
	@scripts/debian-packages buildah
	@$(PYTHON) -m release $(OUTPUT:%=--output %) image $(BASE:%=--base %)

release: ## packages, image, SBOM, checksums and tag of a version that is ready; publishes nothing (VERSION=1.2.3)
	@scripts/debian-packages buildah lintian rpm rpmlint
	@$(PYTHON) -m release $(OUTPUT:%=--output %) release $(BASE:%=--base %) $(VERSION)

dist-test: .venv/test.stamp ## what make packages and make image build, installed in bare Debians and VMs and run there
	@scripts/debian-packages $(release-packages)
	@$(bin)/python -m tests.vm test --suite dist

hooks: .venv/test.stamp ## the same checks before each commit
	$(bin)/pre-commit install

clean: ## remove .venv, build/, dist/ and caches
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Builds only the tools.
.venv: .venv/test.stamp

# Made again only when one of these files changes.
.venv/%.stamp: pyproject.toml $(wildcard kprobe_exporter/source/_*.p[yx][xdi] kprobe_exporter/engine/*.[ch])
	@scripts/bootstrap $*
