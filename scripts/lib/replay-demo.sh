# shellcheck shell=bash
# Sourced by scripts/demo where no cluster can be made: a capture through the real chain,
# from files, to a checkpoint. A real capture is taken where FLOWCHECK_CAPTURES names one.
set -eu
replay_demo() {
	work=$1
	capture=$(find "${FLOWCHECK_CAPTURES:-/nonexistent}" -name iter_40000_p2p_iter10.pcapng 2>/dev/null | head -1)
	if [ -z "$capture" ]; then
		say "Making a capture: a DDP job of two ranks, eight steps, one port mirrored both ways"
		capture=$work/job.pcap
		run .venv/bin/python -m flowcheck.lab "$capture" --steps 8 --truth "$work/truth"
	fi
	say "What is in the capture? No job file is given: everything is learned from the frames"
	run .venv/bin/flowcheck analyze "$capture"
	say "The whole chain: capture, parse, extract, update, each a process"
	echo "    The optimizer never crosses the wire, so it is stated, as the trainer's script states it."
	run .venv/bin/flowcheck replay "$capture" --optimizer sgd --lr 0.01 --digests --out "$work/checkpoint" |
		tee "$work/replay.txt"
	[ -e "$work/truth" ] || return 0
	say "Comparing each step's gradient with what the ranks held"
	grep gradient "$work/truth" | while read -r sum name; do
		grep -q "$sum" "$work/replay.txt" || { say "$name differs"; exit 1; }
		printf '    %s: equal, bit for bit\n' "$name"
	done
}
