/* The inside of struct fcl_net, for the files that make it up. */
#pragma once

#include "fcl_frame.h"
#include "fcl_net.h"
#include "fcl_nic.h"
#include "fcl_qp.h"

enum {
	FCL_QP_BUCKETS = 256,
	FCL_QPS_MAX = 8, /* of one connection */
};

struct fcl_net {
	struct fcl_net_settings settings;
	struct fcl_net_counters counters;
	struct fcl_nic *nic;
	struct fcl_qp *qps;
	struct fcl_qp *buckets[FCL_QP_BUCKETS];
	struct fcl_region *regions;
	uint32_t first_qpn, next_qpn, next_rkey;
	uint64_t random; /* state of the generator */
	/* Reordering: one frame kept back until the next one has left. */
	uint8_t kept[FCL_FRAME_MAX];
	size_t kept_bytes;
	uint64_t kept_ms;
};

uint64_t fcl_net_now_ms(void);
/* Uniform 64 bits. */
uint64_t fcl_net_random(struct fcl_net *net);
/* Builds a frame and hands it to the port, or loses or delays it as the settings say. False: the
 * port has no room. */
bool fcl_net_emit(struct fcl_net *net, const struct fcl_path *path,
		  const struct fcl_packet *packet);
struct fcl_region *fcl_net_region(struct fcl_net *net, uint32_t rkey);
struct fcl_qp *fcl_net_add_qp(struct fcl_net *net);
void fcl_net_remove_qp(struct fcl_qp *qp);
/* Both ends are known: the path and its UDP source port. */
void fcl_net_connect_qp(struct fcl_qp *qp, uint32_t peer_number, const struct fcl_address *peer);
