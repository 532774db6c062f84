/* One end of reliable connections, as the agent's lines speak of it (endpoint.c), and what is
 * answered to a line. */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <stddef.h>
#include <stdint.h>

/* The answer to the line at hand, as text. */
extern char said[1 << 16];
extern size_t said_bytes;
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Does a line that begins with one of the verbs in endpoint.c; 0, or an errno with a sentence said.
 * ENOSYS where the verb is another. */
int endpoint_does(const char *line);

/* Its memory as it is now. */
const uint8_t *endpoint_memory(size_t *bytes);

#endif
