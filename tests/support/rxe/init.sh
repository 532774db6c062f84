#!/bin/sh
# Process 1 of a virtual machine: drivers, then the agent; off when that ends or time is up.
export PATH=/bin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
(sleep 3600 && poweroff -f) &
while read -r module; do insmod "/modules/$module"; done </modules/order
tries=0
while set -- /dev/vport?p1 && [ ! -e "$1" ] && [ $tries -lt 200 ]; do
	tries=$((tries + 1))
	sleep 0.05
done
agent "$1"
poweroff -f
