#define _GNU_SOURCE
#include "fcl_nic.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fcl_error.h"
#include "fcl_frame.h"

enum {
	BATCH = 64,
	RECEIVE_BYTES = 9216, /* room for any frame of a jumbo interface */
	SOCKET_BUFFER_BYTES = 64 << 20,
	QP_AT = 14 + 20 + 8 + 5, /* Ethernet, IPv4, UDP, BTH: the first byte of the QP's number */
	HEADROOM_BYTES = FCL_HEADERS_MAX - 14 + FC_ICRC_BYTES,
};

struct fcl_nic {
	struct fcl_address address;
	int descriptor;
	int port_holder; /* keeps the kernel from answering RoCE frames with ICMP */
	int block_holder;
	uint32_t block; /* of QP numbers */
	int committed;  /* frames of the transmit batch */
	struct mmsghdr tx[BATCH], rx[BATCH];
	struct iovec tx_part[BATCH], rx_part[BATCH];
	uint8_t (*tx_frames)[FCL_FRAME_MAX + 64];
	uint8_t (*rx_frames)[RECEIVE_BYTES];
};

static int read_address(struct fcl_nic *nic, const char *interface, uint32_t pmtu_bytes, int *index)
{
	struct ifreq ask = { 0 };
	strncpy(ask.ifr_name, interface, IFNAMSIZ - 1);
	if (ioctl(nic->descriptor, SIOCGIFINDEX, &ask) < 0)
		return fcl_fail(errno, "%s: no such interface here: %s", interface,
				strerror(errno));
	*index = ask.ifr_ifindex;
	if (ioctl(nic->descriptor, SIOCGIFHWADDR, &ask) < 0)
		return fcl_fail(errno, "%s: has no hardware address: %s", interface,
				strerror(errno));
	memcpy(nic->address.mac, ask.ifr_hwaddr.sa_data, 6);
	if (ioctl(nic->descriptor, SIOCGIFADDR, &ask) < 0)
		return fcl_fail(errno, "%s: has no IPv4 address: %s", interface, strerror(errno));
	memcpy(nic->address.ip, &((struct sockaddr_in *)&ask.ifr_addr)->sin_addr, 4);
	if (ioctl(nic->descriptor, SIOCGIFMTU, &ask) < 0)
		return fcl_fail(errno, "%s: has no MTU: %s", interface, strerror(errno));
	if ((uint32_t)ask.ifr_mtu < pmtu_bytes + HEADROOM_BYTES)
		return fcl_fail(EMSGSIZE, "%s: MTU %d is too small for a path MTU of %u: needs %u",
				interface, ask.ifr_mtu, pmtu_bytes, pmtu_bytes + HEADROOM_BYTES);
	return 0;
}

/* A name in the network namespace for each block that is taken; the kernel frees it when we end. */
static int take_block(struct fcl_nic *nic, const char *interface)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	nic->block_holder = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (nic->block_holder < 0)
		return fcl_fail(errno, "no local socket: %s", strerror(errno));
	for (; nic->block < 1u << FCL_BLOCK_BITS; nic->block++) {
		/* Its first byte is 0: it is no file. */
		const int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1,
					    "flowcheck-lab %s %u", interface, nic->block);
		if (!bind(nic->block_holder, (const struct sockaddr *)&name,
			  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)))
			return 0;
		if (errno != EADDRINUSE)
			return fcl_fail(errno, "%s: a block of QP numbers is refused: %s",
					interface, strerror(errno));
	}
	return fcl_fail(EADDRINUSE, "%s: %d processes use it, there is no room for another",
			interface, 1 << FCL_BLOCK_BITS);
}

/* Passes IPv4 UDP to port 4791 of our own address and to a QP of our block; what else there may be in it,
 * the parser sees. */
static int attach_filter(struct fcl_nic *nic)
{
	uint32_t own;
	memcpy(&own, nic->address.ip, 4);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 8),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 30),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(own), 0, 6),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 36),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FC_PORT_ROCE, 0, 4),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, QP_AT),
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8 - FCL_BLOCK_BITS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nic->block, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	if (setsockopt(nic->descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) <
	    0)
		return fcl_fail(errno, "the receive filter was refused: %s", strerror(errno));
	return 0;
}

static int bind_packets(struct fcl_nic *nic, const char *interface, int index)
{
	const int size = SOCKET_BUFFER_BYTES;
	if (setsockopt(nic->descriptor, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0 ||
	    setsockopt(nic->descriptor, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		return fcl_fail(errno, "%s: socket buffers cannot be raised: %s", interface,
				strerror(errno));
	const struct sockaddr_ll where = { .sll_family = AF_PACKET,
					   .sll_protocol = htons(ETH_P_IP),
					   .sll_ifindex = index };
	if (bind(nic->descriptor, (const struct sockaddr *)&where, sizeof(where)) < 0)
		return fcl_fail(errno, "%s: cannot be bound: %s", interface, strerror(errno));
	return 0;
}

static int hold_port(struct fcl_nic *nic)
{
	const int least = 1, shared = 1;
	struct sockaddr_in where = { .sin_family = AF_INET, .sin_port = htons(FC_PORT_ROCE) };
	memcpy(&where.sin_addr, nic->address.ip, 4);
	nic->port_holder = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (nic->port_holder < 0)
		return fcl_fail(errno, "no UDP socket: %s", strerror(errno));
	setsockopt(nic->port_holder, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least));
	setsockopt(nic->port_holder, SOL_SOCKET, SO_REUSEPORT, &shared, sizeof(shared));
	if (bind(nic->port_holder, (const struct sockaddr *)&where, sizeof(where)) < 0)
		return fcl_fail(errno, "UDP port %d is taken by another program: %s", FC_PORT_ROCE,
				strerror(errno));
	return 0;
}

static int make_buffers(struct fcl_nic *nic)
{
	nic->tx_frames = calloc(BATCH, sizeof(*nic->tx_frames));
	nic->rx_frames = calloc(BATCH, sizeof(*nic->rx_frames));
	if (!nic->tx_frames || !nic->rx_frames)
		return fcl_fail(ENOMEM, "no memory for frames");
	for (int i = 0; i < BATCH; i++) {
		nic->tx_part[i].iov_base = nic->tx_frames[i];
		nic->tx[i].msg_hdr.msg_iov = &nic->tx_part[i];
		nic->tx[i].msg_hdr.msg_iovlen = 1;
		nic->rx_part[i] = (struct iovec){ nic->rx_frames[i], RECEIVE_BYTES };
		nic->rx[i].msg_hdr.msg_iov = &nic->rx_part[i];
		nic->rx[i].msg_hdr.msg_iovlen = 1;
	}
	return 0;
}

int fcl_nic_open(const char *interface, uint32_t pmtu_bytes, struct fcl_nic **out)
{
	struct fcl_nic *nic = calloc(1, sizeof(*nic));
	if (!nic)
		return fcl_fail(ENOMEM, "no memory for a port");
	nic->port_holder = nic->block_holder = -1;
	/* Protocol 0: nothing is received before the filter is there. */
	nic->descriptor = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int index = 0;
	int code = nic->descriptor < 0
			   ? fcl_fail(errno, "a raw socket needs CAP_NET_RAW: %s", strerror(errno))
			   : 0;
	if (!code)
		code = read_address(nic, interface, pmtu_bytes, &index);
	if (!code)
		code = take_block(nic, interface);
	if (!code)
		code = attach_filter(nic);
	if (!code)
		code = hold_port(nic);
	if (!code)
		code = make_buffers(nic);
	if (!code)
		code = bind_packets(nic, interface, index);
	if (code) {
		fcl_nic_close(nic);
		return code;
	}
	*out = nic;
	return 0;
}

void fcl_nic_close(struct fcl_nic *nic)
{
	if (!nic)
		return;
	if (nic->descriptor >= 0)
		close(nic->descriptor);
	if (nic->port_holder >= 0)
		close(nic->port_holder);
	if (nic->block_holder >= 0)
		close(nic->block_holder);
	free(nic->tx_frames);
	free(nic->rx_frames);
	free(nic);
}

const struct fcl_address *fcl_nic_address(const struct fcl_nic *nic)
{
	return &nic->address;
}

uint32_t fcl_nic_block(const struct fcl_nic *nic)
{
	return nic->block;
}

int fcl_nic_descriptor(const struct fcl_nic *nic)
{
	return nic->descriptor;
}

uint8_t *fcl_nic_room(struct fcl_nic *nic)
{
	if (nic->committed == BATCH)
		fcl_nic_flush(nic);
	return nic->committed < BATCH ? nic->tx_frames[nic->committed] : NULL;
}

void fcl_nic_commit(struct fcl_nic *nic, size_t bytes)
{
	nic->tx_part[nic->committed++].iov_len = bytes;
}

int fcl_nic_flush(struct fcl_nic *nic)
{
	int done = 0;
	while (done < nic->committed) {
		const int sent = sendmmsg(nic->descriptor, nic->tx + done,
					  (unsigned)(nic->committed - done), 0);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno != EAGAIN && errno != ENOBUFS)
			return fcl_fail(errno, "frames cannot be sent: %s", strerror(errno));
		if (sent <= 0)
			break;
		done += sent;
	}
	/* What the kernel did not take moves to the front; its buffers travel with it. */
	for (int i = done; done && i < nic->committed; i++) {
		memcpy(nic->tx_frames[i - done], nic->tx_frames[i], nic->tx_part[i].iov_len);
		nic->tx_part[i - done].iov_len = nic->tx_part[i].iov_len;
	}
	nic->committed -= done;
	return 0;
}

bool fcl_nic_backlog(const struct fcl_nic *nic)
{
	return nic->committed > 0;
}

int fcl_nic_receive(struct fcl_nic *nic)
{
	const int came = recvmmsg(nic->descriptor, nic->rx, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
	if (came < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
		return fcl_fail(errno, "frames cannot be received: %s", strerror(errno));
	return came < 0 ? 0 : came;
}

const uint8_t *fcl_nic_frame(const struct fcl_nic *nic, int number, size_t *bytes)
{
	const size_t length = nic->rx[number].msg_len;
	*bytes = length <= RECEIVE_BYTES ? length : 0;
	return nic->rx_frames[number];
}
