#!/bin/sh
# Process 1 until systemd is: this machine's own files, read only, below a layer in memory that takes
# every write; without the services that are enabled out there, and those an emulator is long at.
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
mkdir /low /layer /new
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose files /low || exec sh
mount -t tmpfs layer /layer
mkdir /layer/top /layer/work
mount -t overlay -o lowerdir=/low,upperdir=/layer/top,workdir=/layer/work overlay /new || exec sh
cd /new || exec sh
rm -rf etc/systemd/system etc/systemd/network etc/rc?.d etc/init.d etc/flowcheck etc/machine-id
rm -rf var/lib/flowcheck .dockerenv run/.containerenv
mkdir -p etc/systemd/system "usr/lib/modules/$release"
: >etc/fstab
: >etc/machine-id
echo node >etc/hostname
mount -o bind "/low$modules" "usr/lib/modules/$release"
cp /agent.service etc/systemd/system/
cp /agent.sh etc/agent.sh
# Or all in /tmp, where this repository may lie, would be removed.
mkdir -p etc/tmpfiles.d && ln -s /dev/null etc/tmpfiles.d/tmp.conf
# udev handles what is plugged in later: the agent loads the drivers of the devices that are looked at.
for unit in udev-trigger hwdb-update random-seed update-utmp binfmt machine-id-commit sysusers \
	firstboot pcrphase pcrphase-sysinit journal-catalog-update journal-flush sysctl pstore tmpfiles-clean; do
	ln -s /dev/null "etc/systemd/system/systemd-$unit.service"
done
for unit in ldconfig.service systemd-tmpfiles-clean.timer keyboard-setup.service apparmor.service dbus.socket; do
	ln -s /dev/null "etc/systemd/system/$unit"
done
umount /proc
exec switch_root /new /lib/systemd/systemd
