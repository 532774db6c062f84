# shellcheck shell=bash
# Sourced by scripts/fuzz: what a fuzzer is built from, and what it begins with.
set -eu
work=${FLOWCHECK_FUZZ_DIR:-build/fuzz}
python=${PYTHON:-.venv/bin/python}
core=dpdk_ext/core

sanitizers="-std=gnu11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"

# build_core: all of it as one archive, instrumented once for every fuzzer.
build_core() {
	mkdir -p "$work/objects"
	# shellcheck disable=SC2016
	printf '%s\n' "$core"/*.c | xargs -P "$(nproc)" -I{} sh -c \
		'"$1" $2 -fsanitize=fuzzer-no-link -c -o "$3/$(basename "$4").o" "$4"' \
		- "${CLANG:-clang}" "$sanitizers" "$work/objects" {}
	rm -f "$work/core.a" && ar rcs "$work/core.a" "$work"/objects/*.o
}

# build TARGET FILE...: the fuzzer of that name.
build() {
	target=$1
	shift
	# shellcheck disable=SC2086
	"${CLANG:-clang}" $sanitizers -fsanitize=fuzzer -I "$core" -I tests/fuzz \
		-o "$work/fuzz_$target" "tests/fuzz/fuzz_$target.c" "$@" "$work/core.a" -lz
}

# seeds TARGET [CAPTURE...]: what the fuzzer begins with.
seeds() {
	target=$1
	shift
	mkdir -p "$work/corpus-$target" "$work/seeds-$target"
	[ ! -d "tests/fuzz/corpus/$target" ] || cp "tests/fuzz/corpus/$target"/* "$work/seeds-$target"
	case $target in
	transport) "$python" tests/fuzz/seeds.py "$work/seeds-$target" "$@" ;;
	pcap) cp tests/data/two-ranks-*.pcapng "$@" "$work/seeds-$target" ;;
	esac
}
