# shellcheck shell=bash disable=SC2154
# Sourced by install-node: which files a node has, and how they go again.
set -eu

layout() { # the program that ExecStart names, which systemd wants as a whole path
	if [ ! -x "$1" ] || [ "${1#/}" = "$1" ]; then
		echo "$0: no program at $1, nothing was written: scripts/demo sets FlowCheck up in .venv;" >&2
		echo "--prefix DIR names another virtual environment, from / on, that has bin/flowcheck" >&2 && exit 2
	fi
	units=$root/etc/systemd/system
	if [ -z "$root" ] && ! getent passwd flowcheck >/dev/null; then
		say "user flowcheck: useradd --system, the chain's; undo leaves it, for checkpoints are its own"
		if [ "$verb" = install ]; then useradd --system --user-group --home-dir /var/lib/flowcheck --no-create-home --shell /usr/sbin/nologin flowcheck; fi
	fi
	sed "s#@FLOWCHECK@#$1#" "$here/flowcheck@.service" | place "$units/flowcheck@.service"
	place "$root/etc/flowcheck/examples/cores.conf" <"$here/cores.conf"
	place "$root/etc/flowcheck/examples/job.toml" <"$here/job.toml"
	say "then: cp /etc/flowcheck/examples/job.toml /etc/flowcheck/job.toml, edit it, and"
	say "systemctl enable --now flowcheck@job; journalctl -u flowcheck@job"
}
remove_all() {
	[ -e "$notes" ] || { say "nothing was installed by this script"; return; }
	while read -r sum file; do
		if [ ! -e "$file" ]; then continue; fi
		if [ "$(sha256sum <"$file" | cut -d' ' -f1)" = "$sum" ]; then say "$file: removed" && rm "$file"
		else say "$file: was changed since, left alone"; fi
	done <"$notes"
	rm "$notes"
	for folder in etc/flowcheck/examples etc/flowcheck var/lib/flowcheck; do
		rmdir "$root/$folder" 2>/dev/null || true # job files of yours keep it
	done
}
reload() {
	if [ "$verb" = show ] || [ -n "$root" ] || [ ! -d /run/systemd/system ]; then return; fi
	say "systemctl daemon-reload" && systemctl daemon-reload
}
