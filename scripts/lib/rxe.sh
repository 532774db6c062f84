# shellcheck shell=bash
# Sourced after setup.sh: what virtual machines with the kernel's RoCE, or with a systemd, are made
# from. They are emulated, so any machine runs them; what cannot be had here, the tests name when
# they are skipped.
set -eu

# rxe_need: the emulator and the tools, and a kernel in .venv/rxe-kernel.
rxe_need() {
	apt_need qemu-system-x86 busybox-static nftables ibverbs-providers libibverbs-dev kmod systemd \
		udev ||
		say "Not every package could be had"
	# One without vfio was unpacked before there were machines with a systemd.
	if ! ls .venv/rxe-kernel/lib/modules/*/kernel/drivers/vfio >/dev/null 2>&1; then
		rxe_kernel .venv/rxe-kernel || say "No kernel could be had: its RoCE is not tested"
		rm -rf .venv/rxe-kernel.new
	fi
}

# rxe_kernel FOLDER: the distribution's kernel there, unpacked and not installed, with the modules
# machines without a disk may need: 150 MB. FOLDER appears whole or not at all.
rxe_kernel() {
	command -v apt-get >/dev/null && [ "$(uname -m)" = x86_64 ] || return 1
	package=$(apt-cache depends linux-image-amd64 2>/dev/null |
		sed -n 's/^ *Depends: \(linux-image-.*-amd64\)$/\1/p' | head -1)
	[ -n "$package" ] || return 1
	say "Unpacking $package"
	rm -rf "$1.new"
	mkdir -p "$1.new" || return 1
	modules='./lib/modules/*'
	(cd "$1.new" && run apt-get download -qq -o APT::Sandbox::User=root "$package") || return 1
	dpkg --fsys-tarfile "$1.new/$package"_*.deb | tar -x -C "$1.new" --wildcards \
		'./boot/vmlinuz-*' "$modules/modules.*" "$modules"/kernel/{arch,crypto,lib,net,virt} \
		"$modules"/kernel/drivers/{char,infiniband,net,uio,vfio,virtio} \
		"$modules"/kernel/fs/{9p,fscache,netfs,overlayfs} || return 1
	rm -f "$1.new/$package"_*.deb
	rm -rf "$1" && mv "$1.new" "$1"
}
