/* A process that is ended right before the k-th system call by which it changes a file below a
 * folder, or half way through it where that is a write. A seccomp filter stops it at those calls
 * alone; the parent looks at each of them by ptrace. file_kills.py says how it is used. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define HERE AT_FDCWD

/* Where a call names its file: a descriptor, or a folder's and a path; -1: none. */
struct call {
	long number;
	const char *name;
	int fd, folder, path;
	bool is_write; /* its third argument is a length */
};

static const struct call calls[] = {
	{ SYS_write, "write", 0, -1, -1, true },
	{ SYS_pwrite64, "pwrite", 0, -1, -1, true },
	{ SYS_writev, "writev", 0, -1, -1, false },
	{ SYS_pwritev, "pwritev", 0, -1, -1, false },
	{ SYS_pwritev2, "pwritev2", 0, -1, -1, false },
	{ SYS_sendfile, "sendfile", 0, -1, -1, false },
	{ SYS_copy_file_range, "copy_file_range", 2, -1, -1, false },
	{ SYS_splice, "splice", 2, -1, -1, false },
	{ SYS_ftruncate, "ftruncate", 0, -1, -1, false },
	{ SYS_fallocate, "fallocate", 0, -1, -1, false },
	{ SYS_fsync, "fsync", 0, -1, -1, false },
	{ SYS_fdatasync, "fdatasync", 0, -1, -1, false },
	{ SYS_fchmod, "fchmod", 0, -1, -1, false },
	{ SYS_truncate, "truncate", -1, -1, 0, false },
	{ SYS_rename, "rename", -1, -1, 0, false },
	{ SYS_unlink, "unlink", -1, -1, 0, false },
	{ SYS_rmdir, "rmdir", -1, -1, 0, false },
	{ SYS_mkdir, "mkdir", -1, -1, 0, false },
	{ SYS_chmod, "chmod", -1, -1, 0, false },
	{ SYS_creat, "creat", -1, -1, 0, false },
	{ SYS_link, "link", -1, -1, 1, false },
	{ SYS_symlink, "symlink", -1, -1, 1, false },
	{ SYS_open, "open", -1, -1, 0, false },
	{ SYS_openat, "openat", -1, 0, 1, false },
	{ SYS_renameat, "renameat", -1, 0, 1, false },
	{ SYS_renameat2, "renameat2", -1, 0, 1, false },
	{ SYS_unlinkat, "unlinkat", -1, 0, 1, false },
	{ SYS_mkdirat, "mkdirat", -1, 0, 1, false },
	{ SYS_fchmodat, "fchmodat", -1, 0, 1, false },
	{ SYS_linkat, "linkat", -1, 2, 3, false },
	{ SYS_symlinkat, "symlinkat", -1, 1, 2, false },
};
#define CALLS (sizeof calls / sizeof *calls)

static struct user_regs_struct registers;

static uint64_t argument(int nth)
{
	const uint64_t values[] = { registers.rdi, registers.rsi, registers.rdx,
				    registers.r10, registers.r8,  registers.r9 };
	return values[nth];
}

/* In the child: it stops, and from then on at every call of the list. 0 or -errno. */
int file_kills_begin(void)
{
	struct sock_filter filter[CALLS + 3] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};

	for (size_t i = 0; i < CALLS; i++)
		filter[1 + i] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, CALLS - i, 0);
	filter[1 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[2 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	const struct sock_fprog program = { CALLS + 3, filter };
	if (ptrace(PTRACE_TRACEME, 0, 0, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	raise(SIGSTOP);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? -errno : 0;
}

static void path_of_fd(pid_t pid, int fd, char out[PATH_BYTES])
{
	char link[64];

	snprintf(link, sizeof link, fd == HERE ? "/proc/%d/cwd" : "/proc/%d/fd/%d", pid, fd);
	const ssize_t got = readlink(link, out, PATH_BYTES - 1);
	out[got > 0 ? got : 0] = 0;
}

static void path_at(pid_t pid, uint64_t at, char out[PATH_BYTES])
{
	struct iovec to = { out, PATH_BYTES - 1 }, from = { (void *)at, PATH_BYTES - 1 };
	ssize_t got = process_vm_readv(pid, &to, 1, &from, 1, 0);

	if (got < 0) { /* the string ends in the last page there is */
		to.iov_len = from.iov_len = 4096 - at % 4096;
		got = process_vm_readv(pid, &to, 1, &from, 1, 0);
	}
	out[got > 0 ? got : 0] = 0;
}

/* The file the call is about. */
static void path_of(pid_t pid, const struct call *call, char out[PATH_BYTES])
{
	char name[PATH_BYTES], folder[PATH_BYTES];

	if (call->fd >= 0) {
		path_of_fd(pid, (int)argument(call->fd), out);
		return;
	}
	path_at(pid, argument(call->path), name);
	const int at = call->folder >= 0 ? (int)argument(call->folder) : HERE;
	path_of_fd(pid, at, folder);
	if (name[0] == '/')
		snprintf(out, PATH_BYTES, "%s", name);
	else
		snprintf(out, PATH_BYTES, "%.2000s/%.2000s", folder, name);
}

static const struct call *call_of(pid_t pid, const char *root, char path[PATH_BYTES])
{
	for (size_t i = 0; i < CALLS; i++) {
		const struct call *call = &calls[i];
		if (call->number != (long)registers.orig_rax)
			continue;
		const uint64_t flags = call->number == SYS_open     ? argument(1)
				       : call->number == SYS_openat ? argument(2)
								    : O_CREAT;
		if (!(flags & (O_CREAT | O_TRUNC)))
			return NULL;
		path_of(pid, call, path);
		return strncmp(path, root, strlen(root)) ? NULL : call;
	}
	return NULL;
}

/* Lets the write of `pid` do half of what it is to do, then ends all of it. False where there is
 * no half of it. */
static bool tear(pid_t pid, const struct call *call)
{
	int status;

	if (!call->is_write || registers.rdx < 2)
		return false;
	registers.rdx /= 2;
	ptrace(PTRACE_SETREGS, pid, 0, &registers);
	ptrace(PTRACE_SYSCALL, pid, 0, 0); /* to its end */
	waitpid(pid, &status, __WALL);
	return true;
}

/* In the parent: the child runs on until it is about to make its `kill_at`-th change below `root`,
 * from 0, and is ended there; torn: amid it. Tells in `said` what that was. `before_each`, where
 * there is one, is called before each other change, which `said` tells too. The exit status of a child that came to its end, 1000: it was
 * ended, 1001: it is a call that nothing can tear; or -errno. */
int file_kills_follow(pid_t child, const char *root, int64_t kill_at, int torn, char *said,
		      size_t said_bytes, void (*before_each)(void))
{
	const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
			     PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL;
	char path[PATH_BYTES];
	int64_t seen = 0;
	int status, ended = 0;

	if (waitpid(child, &status, __WALL) < 0 || !WIFSTOPPED(status))
		return -ECHILD;
	if (ptrace(PTRACE_SETOPTIONS, child, 0, options) || ptrace(PTRACE_CONT, child, 0, 0))
		return -errno;
	for (;;) {
		const pid_t pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			return -errno;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (pid != child)
				continue;
			return ended               ? ended
			       : WIFEXITED(status) ? WEXITSTATUS(status)
						   : 128 + WTERMSIG(status);
		}
		const int event = status >> 16, signal = WSTOPSIG(status);
		if (event == PTRACE_EVENT_SECCOMP && !ended) {
			if (ptrace(PTRACE_GETREGS, pid, 0, &registers))
				continue;
			const struct call *call = call_of(pid, root, path);
			const bool here = call && seen++ == kill_at;
			if (here || (call && before_each))
				snprintf(said, said_bytes, "%s %s", call->name,
					 path + strlen(root));
			if (!here && call && before_each)
				before_each();
			if (here) {
				ended = 1000;
				if (torn && !tear(pid, call))
					ended = 1001;
				kill(child, SIGKILL);
				continue;
			}
		}
		/* Stops of its own, and those that a new thread begins with, are not passed on. */
		const bool own = event || signal == SIGSTOP || signal == SIGTRAP;
		ptrace(PTRACE_CONT, pid, 0, own ? 0 : signal);
	}
}
