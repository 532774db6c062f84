/* pcap: draft-ietf-opsawg-pcap, section 4. For pcapng see fc_pcapng.c. */
#include "fc_pcap.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "fc_error.h"
#include "fc_pcap_file.h"

enum {
	PCAP_MICROSECONDS = 0xa1b2c3d4,
	PCAP_NANOSECONDS = 0xa1b23c4d,
	LET_GO_BYTES = 1 << 24, /* a multiple of the page size; a choice: fewer bytes, more calls */
};

int fc_pcap_torn(struct fc_pcap *pcap, enum fc_error_number why)
{
	pcap->torn = why;
	pcap->ended = true;
	return fc_fail_with(
		EBADMSG, why,
		&(const struct fc_error_arguments){ .texts = { pcap->path },
						    .numbers = { pcap->at, pcap->delivered } });
}

int fc_pcap_not_ethernet(struct fc_pcap *pcap, uint32_t link_type)
{
	pcap->foreign = true;
	pcap->foreign_link = (uint16_t)link_type;
	pcap->ended = true;
	return fc_fail(EPROTO, CAPTURE_NOT_ETHERNET, .texts = { pcap->path },
		       .numbers = { link_type });
}

void fc_pcap_note_snaplen(struct fc_pcap *pcap, uint32_t snaplen)
{
	if (snaplen && (!pcap->snaplen_least || snaplen < pcap->snaplen_least))
		pcap->snaplen_least = snaplen;
}

static int open_classic(struct fc_pcap *pcap, uint32_t magic)
{
	if (!fc_pcap_has(pcap, 0, 24))
		return fc_fail(EBADMSG, CAPTURE_HEADER_CUT, .texts = { pcap->path });
	pcap->nanoseconds = magic == PCAP_NANOSECONDS;
	if (fc_pcap_word16(pcap, 4) != 2)
		return fc_fail(EPROTO, CAPTURE_OF_OTHER_VERSION, .texts = { pcap->path },
			       .numbers = { fc_pcap_word16(pcap, 4) });
	/* The upper bits say whether frames include their FCS. */
	if ((fc_pcap_word32(pcap, 20) & 0x0fffffff) != FC_PCAP_ETHERNET)
		return fc_pcap_not_ethernet(pcap, fc_pcap_word32(pcap, 20) & 0x0fffffff);
	fc_pcap_note_snaplen(pcap, fc_pcap_word32(pcap, 16));
	pcap->start = pcap->at = 24;
	return 0;
}

int fc_pcap_open(const char *path, struct fc_pcap **out)
{
	struct fc_pcap *pcap = calloc(1, sizeof *pcap);

	*out = NULL;
	if (!pcap)
		return fc_fail(ENOMEM, CAPTURE_WITHOUT_MEMORY, .texts = { path });
	strncpy(pcap->path, path, sizeof pcap->path - 1);
	int code = fc_map_read_file(path, &pcap->map);
	if (code == 0 && !fc_pcap_has(pcap, 0, 12))
		code = fc_fail(EBADMSG, CAPTURE_TOO_SHORT, .texts = { path });
	if (code == 0) {
		const uint32_t magic = fc_pcap_word32(pcap, 0);
		const uint32_t other = __builtin_bswap32(magic);

		if (magic == FC_PCAPNG_SECTION) {
			pcap->next_generation = true;
		} else if (magic == PCAP_MICROSECONDS || magic == PCAP_NANOSECONDS) {
			code = open_classic(pcap, magic);
		} else if (other == PCAP_MICROSECONDS || other == PCAP_NANOSECONDS) {
			pcap->swapped = true;
			code = open_classic(pcap, other);
		} else {
			code = fc_fail(EBADMSG, CAPTURE_FORMAT_UNKNOWN, .texts = { path },
				       .numbers = { magic });
		}
	}
	if (code < 0) {
		fc_pcap_close(pcap);
		return code;
	}
	*out = pcap;
	return 0;
}

void fc_pcap_close(struct fc_pcap *pcap)
{
	if (pcap) {
		fc_map_close(&pcap->map);
		free(pcap);
	}
}

void fc_pcap_rewind(struct fc_pcap *pcap)
{
	pcap->at = pcap->start;
	pcap->delivered = 0;
	pcap->ended = false;
	pcap->torn = FC_ERROR_NONE;
	pcap->let_go = 0;
	pcap->foreign = false;
	pcap->interfaces_used = 0;
}

uint64_t fc_pcap_position(const struct fc_pcap *pcap)
{
	return pcap->delivered;
}

uint32_t fc_pcap_snaplen(const struct fc_pcap *pcap)
{
	return pcap->snaplen_least;
}

int fc_pcap_ended(const struct fc_pcap *pcap)
{
	return pcap->ended;
}

static int next_classic(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	if (pcap->at == pcap->map.bytes) {
		pcap->ended = true;
		return 0;
	}
	if (!fc_pcap_has(pcap, pcap->at, 16))
		return fc_pcap_torn(pcap, FC_ERROR_TORN_IN_RECORD_HEADER);
	const uint64_t fraction = fc_pcap_word32(pcap, pcap->at + 4);
	out->timestamp_ns = fc_pcap_word32(pcap, pcap->at) * 1000000000ull +
			    (pcap->nanoseconds ? fraction : fraction * 1000);
	out->frame_bytes = fc_pcap_word32(pcap, pcap->at + 8);
	out->wire_bytes = fc_pcap_word32(pcap, pcap->at + 12);
	if (out->frame_bytes > FC_PCAP_FRAME_BYTES_MAX)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_FRAME_LENGTH);
	if (!fc_pcap_has(pcap, pcap->at + 16, out->frame_bytes))
		return fc_pcap_torn(pcap, FC_ERROR_TORN_IN_FRAME);
	out->bytes = pcap->map.base + pcap->at + 16;
	pcap->at += 16 + (uint64_t)out->frame_bytes;
	return 1;
}

int fc_pcap_next(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	if (pcap->foreign)
		return fc_pcap_not_ethernet(pcap, pcap->foreign_link);
	if (pcap->ended)
		return pcap->torn ? fc_pcap_torn(pcap, pcap->torn) : 0;
	const int code =
		pcap->next_generation ? fc_pcapng_next(pcap, out) : next_classic(pcap, out);
	if (code == 1)
		pcap->delivered++;
	return code;
}

/* Releases pages that were read: they stay in the page cache, but not in this process. */
static void let_go(struct fc_pcap *pcap)
{
	const uint64_t done = pcap->at / LET_GO_BYTES * LET_GO_BYTES;

	if (done <= pcap->let_go)
		return;
	madvise(pcap->map.base + pcap->let_go, done - pcap->let_go, MADV_DONTNEED);
	pcap->let_go = done;
}

int64_t fc_pcap_fill(struct fc_pcap *pcap, struct fc_ring *ring, uint64_t limit,
		     struct fc_capture_commit *commit)
{
	uint64_t pushed = 0, taken = 0;
	int code = 1;

	while (taken < limit &&
	       fc_ring_head(ring) + pushed - fc_ring_least_tail(ring) <= ring->mask) {
		struct fc_pcap_frame frame;

		code = fc_pcap_next(pcap, &frame);
		if (code <= 0)
			break;
		struct fc_capture_counters *counters = &commit->counters;
		taken++;
		counters->rx_frames++;
		counters->rx_bytes += frame.frame_bytes;
		if (fc_ring_put(ring, pushed, frame.bytes, frame.frame_bytes, frame.wire_bytes,
				frame.timestamp_ns, commit->source_frames++) < 0) {
			counters->oversize_frames++;
			continue;
		}
		pushed++;
		counters->pushed_frames++;
		counters->snapped_frames += frame.frame_bytes < frame.wire_bytes;
	}
	if (taken)
		fc_ring_publish(ring, pushed, commit);
	let_go(pcap);
	return code < 0 && !taken ? code : (int64_t)taken;
}
