/* Inside a virtual machine: does what it is told line by line over a virtio port. A line is
 * `verb key=value ...`; the answer is a line `code length`, 0 for done, and so many bytes. Nothing
 * here need have an end: the machine is switched off by its init. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "endpoint.h"

enum { HOST_GONE = 200 /* reads without a host at the other end, 50 ms each */ };

char said[1 << 16];
size_t said_bytes;

void say(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	const int more = vsnprintf(said + said_bytes, sizeof said - said_bytes, format, values);
	va_end(values);
	if (more > 0 && said_bytes + (size_t)more < sizeof said)
		said_bytes += (size_t)more;
}

/* run COMMAND : by the shell; its output and its exit code. */
static int do_run(const char *line)
{
	FILE *output = popen(line, "r");
	if (!output)
		return errno;
	said_bytes = fread(said, 1, sizeof said - 1, output);
	const int status = pclose(output);
	return status ? status >> 8 ? status >> 8 : 255 : 0;
}

static int put(int port, const void *from, size_t bytes)
{
	for (const uint8_t *at = from; bytes;) {
		const ssize_t done = write(port, at, bytes);
		if (done < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		if (done > 0)
			at += done, bytes -= (size_t)done;
	}
	return 0;
}

static int answer(int port, char *line)
{
	const void *content = said;
	int code;
	said_bytes = 0;
	if (!strncmp(line, "run ", 4)) {
		code = do_run(line + 4);
	} else if (!strncmp(line, "memory ", 7)) {
		code = 0;
		content = endpoint_memory(&said_bytes);
		const size_t asked = strtoul(line + 7, NULL, 0);
		if (asked < said_bytes)
			said_bytes = asked;
	} else {
		code = endpoint_does(line);
	}
	char head[64];
	const int length = snprintf(head, sizeof head, "%d %zu\n", code, said_bytes);
	return put(port, head, (size_t)length) || put(port, content, said_bytes) ? -1 : 0;
}

int main(int count, char **words)
{
	static char line[1 << 16];
	size_t used = 0;
	const int port = count == 2 ? open(words[1], O_RDWR) : -1;
	for (int alone = 0; port >= 0 && alone < HOST_GONE;) {
		const ssize_t got = read(port, line + used, sizeof line - 1 - used);
		if (got <= 0) {
			alone++;
			usleep(50000);
			continue;
		}
		alone = 0;
		used += (size_t)got;
		for (char *stop; (stop = memchr(line, '\n', used));) {
			*stop++ = 0;
			if (answer(port, line))
				return 1;
			used -= (size_t)(stop - line);
			memmove(line, stop, used);
		}
	}
	return 0;
}
