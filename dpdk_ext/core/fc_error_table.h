/* Why set-up functions fail: each row is one reason, X(NAME, texts, numbers), with the names of its
 * arguments in their order. The sentence of NAME, its cause and its remedy stand in FlowCheck's
 * catalogue (flowcheck/findings/catalog/, the file named above each group); nothing here is told
 * to a user as it is. */
#ifndef FC_ERROR_TABLE_H
#define FC_ERROR_TABLE_H

/* shared_file_reasons.py */
#define FC_ERRORS_OF_SHARED_FILES(X)                                                               \
	X(FILE_NOT_MAPPED, "path", "bytes")                                                        \
	X(TRUSTED_USERS_TOO_MANY, "", "limit")                                                     \
	X(FILE_OF_ANOTHER_USER, "path", "owner_uid own_uid")                                       \
	X(FOLDER_OF_ANOTHER_USER, "path", "owner_uid own_uid")                                     \
	X(FILE_WRITABLE_BY_OTHERS, "path", "mode")                                                 \
	X(FOLDER_WRITABLE_BY_OTHERS, "path", "mode")                                               \
	X(PATH_TOO_LONG, "path", "limit")                                                          \
	X(FOLDER_NOT_OPENED, "path", "")                                                           \
	X(STATUS_NOT_READ, "path", "")                                                             \
	X(FILE_NOT_CREATED, "path", "")                                                            \
	X(MEMORY_NOT_RESERVED, "path", "bytes")                                                    \
	X(FILE_NOT_REGULAR, "path", "")                                                            \
	X(FILE_EMPTY, "path", "")                                                                  \
	X(FILE_IS_LINK, "path", "")                                                                \
	X(FILE_NOT_OPENED, "path", "")                                                             \
	X(NOT_A_RING, "path", "")                                                                  \
	X(NOT_A_FLOW_TABLE, "path", "")                                                            \
	X(NOT_A_STAGING_FILE, "path", "")                                                          \
	X(NOT_A_SHARD, "path", "")                                                                 \
	X(OTHER_LAYOUT_VERSION, "path", "version own")                                             \
	X(SIZES_CONTRADICT, "path", "bytes")                                                       \
	X(RING_SLOTS_REFUSED, "", "slots limit")                                                   \
	X(RING_SLOT_BYTES_REFUSED, "", "slot_bytes limit")                                         \
	X(RING_READERS_DAMAGED, "path", "readers")                                                 \
	X(RING_READERS_REFUSED, "", "readers limit")                                               \
	X(RING_READER_MISSING, "", "reader readers")                                               \
	X(FLOW_TABLE_RECORDS_REFUSED, "", "messages limit")                                        \
	X(STAGING_RECORDS_REFUSED, "", "messages")                                                 \
	X(STAGING_SIZES_REFUSED, "", "bytes records")                                              \
	X(SHARD_ELEMENT_REFUSED, "", "element_bytes")                                              \
	X(SHARD_GRADIENT_REFUSED, "", "gradient_bytes element_bytes")                              \
	X(SHARD_EXTRA_REFUSED, "", "extra_bytes element_bytes")

/* extraction_refusals.py */
#define FC_ERRORS_OF_EXTRACTION(X)                                                                 \
	X(FLOW_TABLE_READ_ONLY, "", "")                                                            \
	X(FLOW_TABLE_TOO_SMALL, "", "messages slots")                                              \
	X(FLOW_TABLE_JOURNAL_TORN, "", "")                                                         \
	X(PARSER_WITHOUT_MEMORY, "", "")                                                           \
	X(STAGING_OF_ANOTHER_TABLE, "", "staging_messages messages")                               \
	X(EXTRACTOR_WITHOUT_MEMORY, "", "")                                                        \
	X(JOURNAL_WITHOUT_SHARD, "", "")                                                           \
	X(STAGING_JOURNAL_TORN, "", "")                                                            \
	X(STAGED_BLOCKS_OVERLAP, "", "")                                                           \
	X(PLAN_SEGMENT_MISPLACED, "", "segment")                                                   \
	X(PLAN_SEGMENTS_TOO_LONG, "", "end bytes")                                                 \
	X(PLAN_SEGMENTS_MISSING, "", "")                                                           \
	X(PLAN_WITHOUT_SHARD, "", "")                                                              \
	X(PLAN_SENDS_MISSING, "", "flow")                                                          \
	X(PLAN_TURN_REFUSED, "", "flow turn turns")                                                \
	X(PLAN_SECOND_STEP_REFUSED, "", "flow")                                                    \
	X(PLAN_FRONTIER_MISSING, "", "flow")                                                       \
	X(PLAN_WITHOUT_ROOM, "", "sends segments")                                                 \
	X(PLAN_STATE_REFUSED, "", "flow state")                                                    \
	X(PLAN_NOT_SUSPENDED, "", "flow")                                                          \
	X(SKIP_REVERSED, "", "flow")                                                               \
	X(SKIP_WITHOUT_PLAN, "", "flow")                                                           \
	X(SKIP_BEFORE_LAST, "", "flow message")                                                    \
	X(FRONTIER_NOT_BEFORE, "", "flow message")

/* capture_file_reasons.py. TORN_*: what lies at `byte`, after `frames` complete frames. */
#define FC_ERRORS_OF_CAPTURE_FILES(X)                                                              \
	X(CAPTURE_WITHOUT_MEMORY, "path", "")                                                      \
	X(CAPTURE_TOO_SHORT, "path", "")                                                           \
	X(CAPTURE_HEADER_CUT, "path", "")                                                          \
	X(CAPTURE_OF_OTHER_VERSION, "path", "version")                                             \
	X(CAPTURE_NOT_ETHERNET, "path", "link_type")                                               \
	X(CAPTURE_FORMAT_UNKNOWN, "path", "first_word")                                            \
	X(TORN_IN_RECORD_HEADER, "path", "byte frames")                                            \
	X(TORN_FRAME_LENGTH, "path", "byte frames")                                                \
	X(TORN_IN_FRAME, "path", "byte frames")                                                    \
	X(TORN_BYTE_ORDER, "path", "byte frames")                                                  \
	X(TORN_SECTION_VERSION, "path", "byte frames")                                             \
	X(TORN_INTERFACE, "path", "byte frames")                                                   \
	X(TORN_PACKET_BLOCK_SHORT, "path", "byte frames")                                          \
	X(TORN_PACKET_INTERFACE, "path", "byte frames")                                            \
	X(TORN_FRAME_OVER_BLOCK, "path", "byte frames")                                            \
	X(TORN_IN_BLOCK_HEADER, "path", "byte frames")                                             \
	X(TORN_IN_SECTION_HEADER, "path", "byte frames")                                           \
	X(TORN_IN_BLOCK, "path", "byte frames")

/* dpdk_failures.py. reason: rte_strerror(), since DPDK has errors of its own; complaints: lines of
 * DPDK's log. */
#define FC_ERRORS_OF_DPDK(X)                                                                       \
	X(DPDK_STARTED_TWICE, "", "")                                                              \
	X(DPDK_LOG_WITHOUT_MEMORY, "", "")                                                         \
	X(DPDK_NOT_STARTED, "reason", "")                                                          \
	X(PORT_MISSING, "name ports", "")                                                          \
	X(PORT_NOT_PROBED, "name ports complaints", "")                                            \
	X(PORT_REQUEST_REFUSED, "name", "queues buffer_bytes frame_bytes")                         \
	X(PORT_INFO_NOT_READ, "name reason", "")                                                   \
	X(PORT_QUEUES_TOO_MANY, "name", "queues wanted")                                           \
	X(PORT_BUFFERS_WITHOUT_MEMORY, "reason", "buffers buffer_bytes mib")                       \
	X(PORT_NOT_CONFIGURED, "name reason", "queues")                                            \
	X(PORT_DESCRIPTORS_REFUSED, "name reason", "descriptors")                                  \
	X(PORT_QUEUE_REFUSED, "name reason", "queue descriptors buffer_bytes")                     \
	X(PORT_NOT_PROMISCUOUS, "name reason", "")                                                 \
	X(PORT_NOT_STARTED, "name reason", "")                                                     \
	X(ENGINE_MISSING, "name engines", "")                                                      \
	X(ENGINE_NOT_PROBED, "name engines complaints", "")                                        \
	X(ENGINE_COPIES_NO_MEMORY, "name", "")                                                     \
	X(ENGINE_NOT_CONFIGURED, "name reason", "descriptors")                                     \
	X(ENGINE_WITHOUT_MEMORY, "name", "")                                                       \
	X(ENGINES_REFUSED, "", "engines limit")                                                    \
	X(ENGINES_WITHOUT_MEMORY, "", "engines")                                                   \
	X(ENGINE_NEEDS_HUGE_PAGES, "", "")                                                         \
	X(PAGE_TABLE_WITHOUT_MEMORY, "", "pages")                                                  \
	X(PAGE_WITHOUT_ADDRESS, "", "page")                                                        \
	X(RING_NOT_REGISTERED, "reason", "")                                                       \
	X(RING_NOT_MAPPED_FOR_DMA, "reason", "")                                                   \
	X(CAPTURE_LOOP_WITHOUT_MEMORY, "", "")                                                     \
	X(FLIGHTS_WITHOUT_MEMORY, "", "frames")                                                    \
	X(TIMESTAMPS_WITHOUT_MEMORY, "", "frames")                                                 \
	X(THREAD_NOT_REGISTERED, "reason", "")                                                     \
	X(SOURCE_ENDED_EARLY, "", "delivered frames")                                              \
	X(COPIES_NOT_FINISHED, "", "copies seconds")

#define FC_ERRORS(X)                                                                               \
	FC_ERRORS_OF_SHARED_FILES(X)                                                               \
	FC_ERRORS_OF_EXTRACTION(X)                                                                 \
	FC_ERRORS_OF_CAPTURE_FILES(X)                                                              \
	FC_ERRORS_OF_DPDK(X)

#define FC_ERROR_NUMBER(name, texts, numbers) FC_ERROR_##name,
enum fc_error_number { FC_ERROR_NONE, FC_ERRORS(FC_ERROR_NUMBER) FC_ERROR_END };
#undef FC_ERROR_NUMBER

#endif
