#include "fc_timestamps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fc_error.h"
#include "fc_pcap.h"

static int count_frames(struct fc_pcap *pcap, uint64_t *out)
{
	struct fc_pcap_frame frame;
	int code;

	while ((code = fc_pcap_next(pcap, &frame)) > 0)
		;
	*out = fc_pcap_position(pcap);
	fc_pcap_rewind(pcap);
	return code;
}

int fc_timestamps_read(const char *path, struct fc_timestamps *out)
{
	struct fc_pcap *pcap;
	struct fc_pcap_frame frame;

	memset(out, 0, sizeof *out);
	int code = fc_pcap_open(path, &pcap);
	if (code < 0)
		return code;
	code = count_frames(pcap, &out->frames);
	if (code == 0) {
		out->stamps = calloc(out->frames ? out->frames : 1, sizeof *out->stamps);
		if (!out->stamps)
			code = fc_fail(ENOMEM, TIMESTAMPS_WITHOUT_MEMORY,
				       .numbers = { out->frames });
	}
	for (uint64_t i = 0; code == 0 && i < out->frames && fc_pcap_next(pcap, &frame) > 0; i++)
		out->stamps[i] = (struct fc_stamp){ frame.timestamp_ns, frame.frame_bytes,
						    frame.wire_bytes };
	fc_pcap_close(pcap);
	if (code < 0)
		fc_timestamps_free(out);
	return code;
}

void fc_timestamps_free(struct fc_timestamps *table)
{
	free(table->stamps);
	memset(table, 0, sizeof *table);
}
