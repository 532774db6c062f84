/* Two processes at one ring, as a stage and `flowcheck status` are: one counts where no slot
 * moves and where one does, the other reads. All counters of a commit are one number, so a commit
 * that is read in part is seen. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fc_ring_ops.h"

enum { COMMITS = 2000000, WORDS = sizeof(struct fc_capture_counters) / sizeof(uint64_t) };

static void count(struct fc_ring *ring)
{
	struct fc_capture_commit commit = { 0 };
	uint64_t *words = (uint64_t *)&commit.counters;

	for (uint64_t n = 1; n <= COMMITS; n++) {
		for (int i = 0; i < WORDS; i++)
			words[i] = n;
		commit.source_frames = n;
		fc_ring_publish(ring, n % 4 == 0, &commit);
	}
}

int main(int words_given, char **words)
{
	struct fc_ring ring;
	uint64_t torn = 0, backward = 0, last = 0, looks = 0;

	if (words_given != 2 || fc_ring_create(words[1], 64, 256, 1, &ring) < 0)
		return 2;
	unlink(words[1]);
	const pid_t child = fork();
	if (child == 0) {
		count(&ring);
		_exit(0);
	}
	while (child > 0 && last < COMMITS) {
		struct fc_capture_commit commit;
		const uint64_t *read = (const uint64_t *)&commit.counters;

		fc_ring_capture_counters(&ring, &commit);
		looks++;
		for (int i = 0; i < WORDS; i++)
			torn += read[i] != commit.source_frames;
		backward += commit.source_frames < last;
		last = commit.source_frames;
	}
	waitpid(child, NULL, 0);
	printf("%llu torn, %llu backward\n", (unsigned long long)torn,
	       (unsigned long long)backward);
	return torn || backward || !looks;
}
