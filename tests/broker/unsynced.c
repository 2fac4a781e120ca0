/* A disk that keeps nothing but what was synced: fsync copies the file beside it, as NAME.synced. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int copy(int file)
{
    char link[64], name[PATH_MAX], synced[PATH_MAX + 16], part[PATH_MAX + 16], data[65536];
    ssize_t size, at = 0;
    struct stat is;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    size = readlink(link, name, sizeof name - 1);
    if (size < 0 || fstat(file, &is) || !S_ISREG(is.st_mode))
        return 0;
    name[size] = 0;
    snprintf(synced, sizeof synced, "%s.synced", name);
    snprintf(part, sizeof part, "%s.part", name);
    int to = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    while ((size = pread(file, data, sizeof data, at)) > 0 && write(to, data, size) == size)
        at += size;
    close(to);
    return rename(part, synced);
}

int fsync(int file) { return copy(file); }
int fdatasync(int file) { return copy(file); }
