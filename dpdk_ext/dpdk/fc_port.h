/* One Ethernet port, opened for listening. Read by the compiler and by cffi. */
#ifndef FC_PORT_H
#define FC_PORT_H

#include <stdint.h>

enum fc_promiscuous {
	FC_PROMISCUOUS_IF_POSSIBLE, /* files and test devices have no such mode */
	FC_PROMISCUOUS_REQUIRED,    /* a mirror port: refused if it is not on afterwards */
};

struct fc_port_request {
	const char *name; /* as the EAL knows it: "0000:3b:00.0", "net_pcap0" */
	uint16_t queues;
	uint16_t rx_descriptors;
	uint32_t mbufs;           /* for all queues; what copy engines hold included */
	uint32_t mbuf_room_bytes; /* longer frames come in several segments */
	uint32_t frame_bytes_max; /* the NIC is asked to accept frames of this size */
	uint32_t promiscuous;     /* enum fc_promiscuous */
};

struct fc_port {
	uint16_t id, queues;
	uint32_t promiscuous, link_up;
	char name[64], driver[32];
};

/* Configures, starts and checks the port; 0, or -errno with a sentence. */
int fc_port_open(const struct fc_port_request *request, struct fc_port *out);
/* af_packet sets a flag of the kernel's interface that outlives this process; it
 * is taken back unless the caller found it set. */
void fc_port_close(struct fc_port *port, uint32_t leave_promiscuous);

#endif
