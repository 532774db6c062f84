/* One Ethernet port, opened for receiving. Read by the compiler and by cffi. */
#ifndef FC_PORT_H
#define FC_PORT_H

#include <stdint.h>

enum fc_promiscuous {
	FC_PROMISCUOUS_IF_POSSIBLE, /* files and test devices have no such mode */
	FC_PROMISCUOUS_REQUIRED,    /* a mirror port: opening fails if it cannot be set */
	FC_PROMISCUOUS_BY_SOCKET,   /* a packet socket of the caller's holds it (packet(7)) */
};

struct fc_port_request {
	const char *name; /* name in the EAL: "0000:3b:00.0", "net_pcap0" */
	uint16_t queues;
	uint16_t rx_descriptors;
	uint32_t mbufs;           /* for all queues, including those in copies in flight */
	uint32_t mbuf_room_bytes; /* longer frames use several segments */
	uint32_t frame_bytes_max; /* largest frame the NIC shall accept */
	uint32_t promiscuous;     /* enum fc_promiscuous */
};

struct fc_port {
	uint16_t id, queues;
	uint32_t promiscuous, link_up;
	uint32_t link_mbps; /* Mb/s; 0: unknown */
	char name[64], driver[32];
};

/* Configures, starts and checks the port. Returns 0, or -errno (see fc_error.h). */
int fc_port_open(const struct fc_port_request *request, struct fc_port *out);
/* Closes the port. af_packet sets a flag on the kernel's interface that outlives this process; it
 * is cleared unless the caller found it set (leave_promiscuous). */
void fc_port_close(struct fc_port *port, uint32_t leave_promiscuous);

#endif
