/* What a block of bytes is, in 16 bytes, summed as the bytes are made: two lanes of AES's round.
 *
 * Lanes A and B begin with the first 256 bits behind the point of pi. Of every 32 bytes A takes the
 * first 16 and B the others, the last ones filled up with zeros:
 *     A = round(A) ^ first, B = round(B) ^ others
 * round: SubBytes, ShiftRows, MixColumns of FIPS 197, section 5.1, a lane's bytes being the state as
 * section 3.4 lays it out: x86's AESENC, one operation for 32 bytes where VAES is. In the end, with
 * the number of bytes as 16, little-endian:
 *     A = round(A) ^ number, A = round(A) ^ B, and round(A) three times over.
 * A round can be undone, so that whatever changes within one 16 bytes changes the digest for certain;
 * several changes cancel with the odds of chance. It finds faults, not forgers. */
#ifndef FC_DIGEST_H
#define FC_DIGEST_H

#include <stdint.h>

#define FC_DIGEST_LANE 16u
/* Bytes that both lanes take; and what the lanes themselves are. */
#define FC_DIGEST_PAIR (2 * FC_DIGEST_LANE)
#define FC_DIGEST_WORDS (FC_DIGEST_PAIR / 8)

/* Before the first digest of a process. */
void fc_digest_prepare(void);
void fc_digest_begin(uint64_t *lanes);
/* One round of a lane, and 16 bytes, on every CPU. */
void fc_digest_round(uint8_t *lane, const uint8_t *bytes);
/* `bytes`: how many went into the lanes, which are of no use afterwards. */
void fc_digest_end(uint64_t *lanes, uint64_t bytes, uint8_t *out);

#endif
