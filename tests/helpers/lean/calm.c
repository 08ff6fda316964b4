/* Preloaded into ranks for tests: threads of Gloo and Horovod pause where they spin.
 *
 * A rank that waits for no message of a peer leaves what the peer has sent in the socket, so that epoll returns at once
 * until it does; the writer of a timeline yields until there is something to write. On busy cores the ranks spend half
 * of their time so, and keep the peer from its turn.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/epoll.h>
#include <time.h>

#define AT_ONCE_NANOSECONDS 30000
#define CALLS 5  /* without a pause */
#define PAUSE_NANOSECONDS 40000  /* for each call in a row */
#define MOST_NANOSECONDS 2000000

static __thread long ended;  /* when the last call of this thread returned */
static __thread int calls;  /* in a row that returned at once */

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void pause_if_spinning(void) {
    calls = now() - ended < AT_ONCE_NANOSECONDS ? calls + 1 : 0;
    if (calls > CALLS) {
        long pause = calls * (long)PAUSE_NANOSECONDS;
        nanosleep(&(struct timespec){0, pause < MOST_NANOSECONDS ? pause : MOST_NANOSECONDS}, NULL);
    }
    ended = now();
}

int epoll_wait(int file, struct epoll_event *events, int most, int timeout) {
    static int (*next)(int, struct epoll_event *, int, int);
    if (!next) next = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    int found = next(file, events, most, timeout);
    if (found > 0) pause_if_spinning();
    return found;
}

int sched_yield(void) {
    pause_if_spinning();
    return 0;
}
