/* Loops that call one copy function per frame, so that stages are compared with the
 * same bytes moved by a bare copy. Functions come as pointers: out of libc and _core. */
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES (2u * 1024 * 1024)
#define BURST 64

typedef void (*copy_fn)(void *, const void *, size_t);
typedef int (*put_fn)(void *, uint64_t, const uint8_t *, uint32_t, uint32_t, uint64_t, uint64_t);
typedef void (*publish_fn)(void *, uint64_t, void *);

/* Item n of an array whose items do not cross 2 MiB pages; per_page 0: no such rule. */
static uint8_t *at(uint8_t *base, uint64_t stride, uint64_t per_page, uint64_t n)
{
	if (!per_page)
		return base + n * stride;
	return base + n / per_page * PAGE_BYTES + n % per_page * stride;
}

void bench_copy(void *copy, uint8_t *to, uint64_t to_stride, uint64_t to_per_page, uint8_t *from,
		uint64_t from_stride, uint64_t from_per_page, uint64_t bytes, uint64_t items)
{
	for (uint64_t n = 0; n < items; n++)
		((copy_fn)copy)(at(to, to_stride, to_per_page, n),
				at(from, from_stride, from_per_page, n), bytes);
}

/* sizes: bytes of each frame. Returns the frames that found room. */
uint64_t bench_put(void *put, void *publish, void *ring, void *commit, const uint8_t *frames,
		   uint64_t stride, const uint32_t *sizes, uint64_t items)
{
	uint64_t done = 0;

	while (done < items) {
		uint64_t pending = 0;

		while (pending < BURST && done + pending < items &&
		       !((put_fn)put)(ring, pending, frames + (done + pending) * stride,
				      sizes[done + pending], sizes[done + pending], 0,
				      done + pending))
			pending++;
		if (!pending)
			break;
		((publish_fn)publish)(ring, pending, commit);
		done += pending;
	}
	return done;
}

typedef void (*encode_fn)(int, int, int, uint8_t *, uint8_t **, uint8_t **);

/* ISA-L's ec_encode_data() over `items` stripes; data, made: the pointers of one after the other. */
void bench_encode(void *encode, int bytes, int k, int rows, uint8_t *tables, uint8_t **data,
		  uint8_t **made, uint64_t items)
{
	for (uint64_t n = 0; n < items; n++)
		((encode_fn)encode)(bytes, k, rows, tables, data + n * (uint64_t)k,
				    made + n * (uint64_t)rows);
}
