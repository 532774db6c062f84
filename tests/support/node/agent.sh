# shellcheck shell=bash
# Inside a virtual machine, a service: does what it is told, a line of bash each, over a virtio port.
# The answer is a line `code length` and so many bytes: what was printed.
modprobe virtio_console
until set -- /dev/vport?p1 && [ -c "$1" ]; do sleep 0.2; done
exec 3<>"$1"
said=$(mktemp)
while IFS= read -r line <&3; do
	code=0
	bash -c "$line" >"$said" 2>&1 </dev/null 3>&- || code=$?
	echo "$code $(stat -c %s "$said")" >&3
	cat "$said" >&3
done
