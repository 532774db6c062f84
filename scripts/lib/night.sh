# shellcheck shell=bash
# Sourced after setup.sh: what only the tests of the night need. None of it is a reason to stop; a test
# whose other side is missing says so.
set -eu

night_need() {
	# It trains in the lab and reads the folders written for it. It compiles with the torch that is
	# here, not its own.
	if ! .venv/bin/pip show -q deepspeed 2>/dev/null; then
		say "Installing DeepSpeed"
		run .venv/bin/pip install -qq wheel || true
		DS_BUILD_OPS=0 run .venv/bin/pip install -qq --no-build-isolation "deepspeed>=0.19" ||
			say "No DeepSpeed: its tests are skipped"
	fi
	# What a fleet is started by.
	run .venv/bin/pip install -qq "ray>=2.52,<3" || say "No Ray: its test is skipped"
	# Google's and Azure's stores, as others wrote them.
	run .venv/bin/pip install -qq gcsfs adlfs gcp-storage-emulator ||
		say "No gcsfs, adlfs or gcp-storage-emulator: the tests of those stores are skipped"
	export FLOWCHECK_AZURITE=$PWD/.venv/azurite/node_modules/.bin/azurite-blob
	[ -x "$FLOWCHECK_AZURITE" ] ||
		{ command -v npm >/dev/null && run npm install --silent --prefix .venv/azurite azurite; } ||
		say "No npm, or no Azurite from it: the test of Azure's store is skipped"
}
