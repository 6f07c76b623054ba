/* Gives every host of the lab its own loopback address.
 *
 * The daemons use the same ports on all hosts and find their own host by gethostname(2). Loaded
 * with LD_PRELOAD, this library replaces "any" and 127.0.0.1 by the address that /etc/hosts, which
 * is the lab's own, gives for the host's name, and lets every connection come from there. The
 * name is asked for each time: a job's environment comes from another host.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static in_addr_t own_address(void)
{
    static char known_name[256];
    static in_addr_t known;
    char name[256] = "", line[512], text[64], first[256];
    FILE *hosts;

    gethostname(name, sizeof name - 1);
    if (known != 0 && strcmp(name, known_name) == 0)
        return known;
    hosts = fopen("/etc/hosts", "re");
    if (hosts == NULL)
        return 0;
    known = 0;
    while (known == 0 && fgets(line, sizeof line, hosts) != NULL)
        if (sscanf(line, "%63s %255s", text, first) == 2 && strcmp(first, name) == 0)
            known = inet_addr(text);
    fclose(hosts);
    strcpy(known_name, name);
    return known;
}

static int is_own(in_addr_t address)
{
    return address == htonl(INADDR_ANY) || address == htonl(INADDR_LOOPBACK);
}

/* Copies an IPv4 address with the host's own instead of "any" and 127.0.0.1; else returns it. */
static const struct sockaddr *moved(const struct sockaddr *given, socklen_t length,
                                    struct sockaddr_in *copy)
{
    in_addr_t own;

    if (given == NULL || given->sa_family != AF_INET || length < sizeof *copy)
        return given;
    memcpy(copy, given, sizeof *copy);
    own = is_own(copy->sin_addr.s_addr) ? own_address() : 0;
    if (own != 0)
        copy->sin_addr.s_addr = own;
    return (const struct sockaddr *)copy;
}

int bind(int fd, const struct sockaddr *given, socklen_t length)
{
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    struct sockaddr_in copy;

    return next(fd, moved(given, length, &copy), length);
}

/* Without it the kernel would choose the receiver's address for the sender, too. */
static void bind_to_own(int fd)
{
    struct sockaddr_in bound = {.sin_family = AF_INET};
    socklen_t length = sizeof bound;

    if (getsockname(fd, (struct sockaddr *)&bound, &length) != 0 || bound.sin_family != AF_INET
        || bound.sin_port != 0 || bound.sin_addr.s_addr != htonl(INADDR_ANY))
        return;
    bind(fd, (struct sockaddr *)&bound, sizeof bound);
}

int connect(int fd, const struct sockaddr *given, socklen_t length)
{
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    struct sockaddr_in copy;

    if (given != NULL && given->sa_family == AF_INET)
        bind_to_own(fd);
    return next(fd, moved(given, length, &copy), length);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *given,
               socklen_t length)
{
    ssize_t (*next)(int, const void *, size_t, int, const struct sockaddr *, socklen_t)
        = dlsym(RTLD_NEXT, "sendto");
    struct sockaddr_in copy;

    if (given != NULL && given->sa_family == AF_INET)
        bind_to_own(fd);
    return next(fd, data, size, flags, moved(given, length, &copy), length);
}
