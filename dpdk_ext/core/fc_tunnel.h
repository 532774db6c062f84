/* What a switch wraps its copies in. */
#ifndef FC_TUNNEL_H
#define FC_TUNNEL_H

#include "fc_decoding.h"

/* Both begin behind the header that announced them, and go on with what is inside.
 * payload_bytes: of the packet that carries it, from here on. */
enum fc_verdict fc_decode_gre(struct fc_decoding *d, size_t payload_bytes);
enum fc_verdict fc_decode_vxlan(struct fc_decoding *d, size_t payload_bytes);

#endif
