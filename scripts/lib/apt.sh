# shellcheck shell=bash
# Sourced by scripts/lib/setup.sh: Debian packages, where they can be had.
set -eu

# apt_need PACKAGE...: installs the ones that are missing, if root on a Debian.
apt_need() {
	missing=""
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
			missing="$missing $package"
	done
	[ -n "$missing" ] || return 0
	if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
		say "Missing:$missing. Not root on a Debian: going on without; what needs them is skipped"
		return 0
	fi
	say "Installing$missing"
	run apt-get update -q >/dev/null
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive run apt-get install -yq --no-install-recommends $missing >/dev/null
}

# apt_need_quiet PACKAGE: like apt_need, but no service of the package is started.
apt_need_quiet() {
	policy=/usr/sbin/policy-rc.d
	if [ "$(id -u)" != 0 ] || [ -e "$policy" ] ||
		dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; then
		apt_need "$1"
		return
	fi
	# Debian asks this file before it starts a service (invoke-rc.d(8)); 101 is no.
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	apt_need "$1" && code=0 || code=$?
	rm -f "$policy"
	trap - EXIT
	return "$code"
}
