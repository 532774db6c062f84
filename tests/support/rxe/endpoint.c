/* One end of reliable connections: verbs that make it, join it to another and write through it. */
#include "endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>

enum {
	PAIRS_MAX = 16,
	REQUESTS = 256,
	UNTOUCHED = 0xa5, /* what memory holds before anybody wrote to it */
	PORT = 1,         /* of the RDMA device; it has one */
};

static struct {
	struct ibv_context *device;
	struct ibv_pd *domain;
	struct ibv_cq *completions;
	struct ibv_mr *region;
	struct ibv_qp *pairs[PAIRS_MAX];
	unsigned count, gid_index;
	enum ibv_mtu mtu;
	uint32_t psn;
	uint8_t *memory;
	size_t bytes;
} end;

/* Says what failed and why; the code to answer. */
static int failed(const char *what)
{
	const int code = errno ? errno : EIO;
	say("%s: %s", what, strerror(code));
	return code;
}

static const char *value_of(const char *line, const char *key)
{
	const size_t length = strlen(key);
	for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' '))
		if (!strncmp(at + 1, key, length) && at[1 + length] == '=')
			return at + 1 + length + 1;
	return NULL;
}

static uint64_t number(const char *line, const char *key)
{
	const char *text = value_of(line, key);
	return text ? strtoull(text, NULL, 0) : 0;
}

static int gid_from(const char *line, union ibv_gid *gid)
{
	const char *text = value_of(line, "gid");
	for (int i = 0; i < 16; i++, text += 2) {
		unsigned byte;
		if (!text || sscanf(text, "%2x", &byte) != 1)
			return -1;
		gid->raw[i] = (uint8_t)byte;
	}
	return 0;
}

static struct ibv_qp *pair_of(const char *line)
{
	const uint64_t nth = number(line, "pair");
	return nth < end.count ? end.pairs[nth] : NULL;
}

static void let_go(void)
{
	for (unsigned i = 0; i < end.count; i++)
		ibv_destroy_qp(end.pairs[i]);
	if (end.region)
		ibv_dereg_mr(end.region);
	if (end.completions)
		ibv_destroy_cq(end.completions);
	if (end.domain)
		ibv_dealloc_pd(end.domain);
	if (end.device)
		ibv_close_device(end.device);
	free(end.memory);
	memset(&end, 0, sizeof end);
}

static int open_device(void)
{
	int count;
	struct ibv_device **all = ibv_get_device_list(&count);
	if (all && count)
		end.device = ibv_open_device(all[0]);
	if (all)
		ibv_free_device_list(all);
	return end.device ? 0 : failed("no RDMA device");
}

static int find_gid(const union ibv_gid *wanted)
{
	union ibv_gid found;
	for (end.gid_index = 0; !ibv_query_gid(end.device, PORT, (int)end.gid_index, &found);
	     end.gid_index++)
		if (!memcmp(&found, wanted, sizeof found))
			return 0;
	errno = ENOENT;
	return failed("no such address at the RDMA device");
}

static int open_pair(void)
{
	struct ibv_qp_init_attr how = {
		.send_cq = end.completions,
		.recv_cq = end.completions,
		.qp_type = IBV_QPT_RC,
		.cap = { REQUESTS, REQUESTS, 1, 1, 0 },
	};
	struct ibv_qp *pair = ibv_create_qp(end.domain, &how);
	if (!pair)
		return failed("queue pair");
	end.pairs[end.count++] = pair;
	struct ibv_qp_attr begin = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	};
	errno = ibv_modify_qp(pair, &begin,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	return errno ? failed("queue pair to INIT") : 0;
}

/* open gid= mtu= bytes= pairs= psn= : says the key and address of its memory, and its pairs. */
static int do_open(const char *line)
{
	union ibv_gid gid;
	let_go();
	end.bytes = number(line, "bytes");
	end.psn = (uint32_t)number(line, "psn");
	/* 256 is IBV_MTU_256 = 1, every further name is the double. */
	end.mtu = IBV_MTU_256;
	for (uint64_t mtu = number(line, "mtu"); mtu > 256; mtu /= 2)
		end.mtu++;
	const uint64_t pairs = number(line, "pairs");
	errno = EINVAL;
	if (gid_from(line, &gid) || !end.bytes || !pairs || pairs > PAIRS_MAX)
		return failed("open");
	int code = open_device();
	if (!code)
		code = find_gid(&gid);
	if (code)
		return code;
	end.memory = aligned_alloc(4096, (end.bytes + 4095) & ~4095ul);
	end.domain = ibv_alloc_pd(end.device);
	end.completions = ibv_create_cq(end.device, PAIRS_MAX * REQUESTS * 2, NULL, NULL, 0);
	if (!end.memory || !end.domain || !end.completions)
		return failed("memory, domain or completion queue");
	memset(end.memory, UNTOUCHED, end.bytes);
	end.region = ibv_reg_mr(end.domain, end.memory, end.bytes,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!end.region)
		return failed("memory region");
	say("rkey=%u va=%llu pairs=", end.region->rkey, (unsigned long long)(uintptr_t)end.memory);
	while (end.count < pairs) {
		code = open_pair();
		if (code)
			return code;
		say("%s%u", end.count > 1 ? "," : "", end.pairs[end.count - 1]->qp_num);
	}
	return 0;
}

/* join pair= number= psn= gid= timeout= : to the other side's queue pair. */
static int do_join(const char *line)
{
	union ibv_gid gid;
	struct ibv_qp *pair = pair_of(line);
	errno = EINVAL;
	if (!pair || gid_from(line, &gid))
		return failed("join");
	struct ibv_qp_attr how = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = end.mtu,
		.dest_qp_num = (uint32_t)number(line, "number"),
		.rq_psn = (uint32_t)number(line, "psn"),
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = PORT },
	};
	how.ah_attr.grh.dgid = gid;
	how.ah_attr.grh.sgid_index = (uint8_t)end.gid_index;
	how.ah_attr.grh.hop_limit = 64;
	errno = ibv_modify_qp(pair, &how,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				      IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return failed("queue pair to RTR");
	how.qp_state = IBV_QPS_RTS;
	how.timeout = (uint8_t)number(line, "timeout");
	how.retry_cnt = how.rnr_retry = 7;
	how.sq_psn = end.psn;
	how.max_rd_atomic = 1;
	errno = ibv_modify_qp(pair, &how,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return errno ? failed("queue pair to RTS") : 0;
}

/* fill from= seed= : the rest of the memory gets bytes that repeat nowhere (Vigna's splitmix64). */
static int do_fill(const char *line)
{
	uint64_t state = number(line, "seed");
	for (size_t at = number(line, "from"); at < end.bytes; at += 8) {
		uint64_t word = state += 0x9e3779b97f4a7c15;
		word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
		word = (word ^ word >> 27) * 0x94d049bb133111eb;
		word ^= word >> 31;
		memcpy(end.memory + at, &word, end.bytes - at < 8 ? end.bytes - at : 8);
	}
	return 0;
}

/* expect pair= count= : room for so many immediates. */
static int do_expect(const char *line)
{
	struct ibv_qp *pair = pair_of(line);
	struct ibv_recv_wr request = { .wr_id = number(line, "pair") }, *bad;
	errno = pair ? 0 : EINVAL;
	for (uint64_t left = number(line, "count"); left && !errno; left--)
		errno = ibv_post_recv(pair, &request, &bad);
	return errno ? failed("receive") : 0;
}

/* write pair= from= bytes= va= rkey= [imm=] : posts it; from is an offset in the own memory. */
static int do_write(const char *line)
{
	struct ibv_qp *pair = pair_of(line);
	const uint64_t from = number(line, "from"), bytes = number(line, "bytes");
	const int with_word = value_of(line, "imm") != NULL;
	errno = EINVAL;
	if (!pair || from > end.bytes || bytes > end.bytes - from)
		return failed("write");
	struct ibv_sge piece = { (uintptr_t)end.memory + from, (uint32_t)bytes, end.region->lkey };
	struct ibv_send_wr request = {
		.wr_id = number(line, "pair"),
		.sg_list = &piece,
		.num_sge = bytes != 0,
		.opcode = with_word ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl((uint32_t)number(line, "imm")),
	}, *bad;
	request.wr.rdma.remote_addr = number(line, "va");
	request.wr.rdma.rkey = (uint32_t)number(line, "rkey");
	errno = ibv_post_send(pair, &request, &bad);
	return errno ? failed("post") : 0;
}

/* wait count= s= : a line per completion, in their order: status, pair, whether it is of something
 * that was received, and the immediate then. */
static int do_wait(const char *line)
{
	const time_t limit = time(NULL) + (time_t)number(line, "s");
	for (uint64_t left = number(line, "count"); left;) {
		struct ibv_wc done;
		const int found = ibv_poll_cq(end.completions, 1, &done);
		if (found < 0)
			return failed("completion queue");
		if (found) {
			const int came = !done.status && done.opcode & IBV_WC_RECV;
			say("%d %d %d %u\n", done.status, (int)done.wr_id, came,
			    came ? ntohl(done.imm_data) : 0);
			left--;
			continue;
		}
		if (time(NULL) > limit)
			return ETIMEDOUT;
		usleep(200);
	}
	return 0;
}

int endpoint_does(const char *line)
{
	static const struct {
		const char *verb;
		int (*does)(const char *line);
	} verbs[] = {
		{ "open ", do_open },     { "join ", do_join },   { "fill ", do_fill },
		{ "expect ", do_expect }, { "write ", do_write }, { "wait ", do_wait },
	};
	errno = 0;
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (!strncmp(line, verbs[i].verb, strlen(verbs[i].verb)))
			return verbs[i].does(line);
	return ENOSYS;
}

const uint8_t *endpoint_memory(size_t *bytes)
{
	*bytes = end.bytes;
	return end.memory;
}
