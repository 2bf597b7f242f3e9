/* PID 1 of a lab host: starts argv[1..] once, then reaps children for ever. Deaf to all but KILL, as PID 1 is. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (fork() == 0) {
        execv(argv[1], argv + 1);
        _exit(127);
    }
    for (;;)
        if (wait(NULL) < 0 && errno == ECHILD) sleep(1);
}
