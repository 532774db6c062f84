/* Runs that were made go out line by line, a few within every loop that makes the next one: memory
 * takes a line in about the time that one is computed, and waits for nobody. */

struct sending {
	bool any;
	struct fc_step_sent what;
	struct v_sums sums;
};

FC_INLINE struct sending send_begin(const struct fc_step_run *run, size_t section)
{
	static uint64_t none[FC_DIGEST_WORDS];
	const struct fc_step_sent nothing = { none, NULL, NULL, NULL };
	const struct fc_step_sent what = run->sends ? run->sent[section] : nothing;

	return (struct sending){ run->sends, what, sums_of(what.sums) };
}

FC_INLINE void send_line(struct sending *sending, size_t line)
{
	const struct fc_step_sent *what = &sending->what;

	if (!sending->any)
		return;
	struct v_line out = line_at(what->made + FC_LINE * line);
	sum_line(&sending->sums, out);
	if (what->lines != what->made)
		out = line_at(what->lines + FC_LINE * line);
	stream_line(what->to + FC_LINE * line, out);
}

FC_INLINE void send_end(const struct sending *sending)
{
	if (sending->any)
		keep_sums(&sending->sums, sending->what.sums);
}

FC_TARGET static void send(const struct fc_step_sent *sent)
{
	struct v_sums sums = sums_of(sent->sums);

	for (size_t line = 0; line < FC_RUN_LINES; line++) {
		sum_line(&sums, line_at(sent->made + FC_LINE * line));
		stream_line(sent->to + FC_LINE * line, line_at(sent->lines + FC_LINE * line));
	}
	keep_sums(&sums, sent->sums);
}

FC_TARGET static void digest(uint64_t *to, const uint8_t *data, size_t pairs)
{
	struct v_sums sums = sums_of(to);

	for (; pairs; pairs--, data += FC_DIGEST_PAIR)
		sum_pair(&sums, data);
	keep_sums(&sums, to);
}
