# Sourced by scripts/{demo,test,check,bench}: brings a bare Debian 12 machine to
# where FlowCheck runs. Every step looks first and does only what is missing.
set -eu
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() {
  if [ -t 1 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi
}
run() { printf '    $ %s\n' "$*"; "$@"; }

. scripts/lib/apt.sh

# setup [EXTRA]: .venv with FlowCheck's dependencies, the C built, the package importable.
setup() {
	apt_need gcc libc6-dev pkg-config python3-venv python3-dev libdpdk-dev libisal-dev zlib1g-dev iproute2 procps
	# Modules are compiled when first imported, for every process after: whatever the shell was told.
	unset PYTHONDONTWRITEBYTECODE
	python=$(command -v python3.11 || command -v python3.12 || command -v python3)
	if [ ! -x .venv/bin/python ]; then
		say "Making the virtual environment .venv with $($python --version)"
		run "$python" -m venv .venv
	fi
	wanted=$(cat pyproject.toml scripts/lib/setup.sh | sha256sum | cut -c1-16)-${1:-run}
	have=$(cat .venv/flowcheck-setup 2>/dev/null || true)
	# What tests need includes what running needs.
	if [ "$have" = "${wanted%-*}-dev" ]; then have=$wanted; fi
	# -qq: what an index of the machine's own lacks is no word worth here; errors are still said.
	install=".venv/bin/pip install -qq --no-compile"
	if [ "$have" != "$wanted" ]; then
		say "Installing Python packages"
		run $install "cffi>=1.16" "setuptools>=68" "hatchling>=1.21" editables
	fi
	building=
	newest=$(find dpdk_ext -name '*.[ch]' -newer .venv/flowcheck-built 2>/dev/null | head -1)
	if [ ! -e .venv/flowcheck-built ] || [ -n "$newest" ] || ! ls flowcheck/_core*.so >/dev/null 2>&1; then
		say "Building the C extensions"
		run .venv/bin/python dpdk_ext/build_ffi.py &
		building=$!
	fi
	if [ "$have" != "$wanted" ]; then
		# The CPU build is enough: the replica lives on the CPU.
		FLOWCHECK_COMPILED_APART=1 run $install --no-build-isolation "torch==2.13.0" -e ".${1:+[$1]}"
		echo "$wanted" >.venv/flowcheck-setup
	fi
	if [ -n "$building" ]; then
		wait "$building"
		touch .venv/flowcheck-built
	fi
}
