/* hostexec PID CWD ARGV...: run ARGV inside the lab host whose first process has this pid.
 *
 * The command starts with default signal handlers and an empty mask; signals sent to hostexec reach it (a ^C at a terminal
 * already does); it is killed if hostexec is; hostexec ends as it ends, signals included. nsenter does none of this.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const spaces[] = {"net", "uts", "ipc", "pid", "mnt"}; /* mnt last: /proc changes with it */
static const int relayed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void enter(const char *pid) {
    char path[64];
    int fds[COUNT(spaces)];
    for (size_t i = 0; i < COUNT(spaces); i++) {
        snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, spaces[i]);
        fds[i] = open(path, O_RDONLY | O_CLOEXEC);
    }
    for (size_t i = 0; i < COUNT(spaces); i++)
        if (fds[i] < 0 || setns(fds[i], 0) < 0) {
            fprintf(stderr, "hostexec: cannot enter the host of process %s: %s\n", pid, strerror(errno));
            exit(125);
        }
}

static void start(char **argv, sigset_t *none) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, none, NULL);
    execvp(argv[0], argv);
    fprintf(stderr, "hostexec: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static void end_alike(int status, sigset_t *none) {
    if (WIFSIGNALED(status)) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(WTERMSIG(status), SIG_DFL);
        sigprocmask(SIG_SETMASK, none, NULL);
        raise(WTERMSIG(status));
    }
    exit(WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    sigset_t mask, none;
    siginfo_t info;
    int status;
    if (argc < 4) return 2;
    sigemptyset(&none);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    for (size_t i = 0; i < COUNT(relayed); i++) sigaddset(&mask, relayed[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    enter(argv[1]);
    if (chdir(argv[2]) < 0) {
        fprintf(stderr, "hostexec: %s: %s\n", argv[2], strerror(errno));
        return 125;
    }
    pid_t child = fork();
    if (child < 0) return 125;
    if (child == 0) start(argv + 3, &none);
    for (;;) {
        if (sigwaitinfo(&mask, &info) < 0) continue;
        if (info.si_signo != SIGCHLD) {
            if (info.si_code != SI_KERNEL) kill(child, info.si_signo);
        } else if (waitpid(child, &status, WNOHANG) == child) {
            end_alike(status, &none);
        }
    }
}
