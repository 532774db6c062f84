/* Encapsulation of mirrored frames. */
#ifndef FC_TUNNEL_H
#define FC_TUNNEL_H

#include "fc_decoding.h"

/* Both begin after the header that announced them and continue with the content. payload_bytes: of
 * the carrying packet, from here on. */
enum fc_verdict fc_decode_gre(struct fc_decoding *d, size_t payload_bytes);
enum fc_verdict fc_decode_vxlan(struct fc_decoding *d, size_t payload_bytes);

#endif
